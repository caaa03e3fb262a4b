"""A loaded model that is saved again is a complete repository, and its card's lines load it without a question."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.base import model as sentence_transformers_model
from transformers import AutoModel, AutoModelForPreTraining

from csezoo.modeling import SimCSEConfig, SimCSEModel
from csezoo.modeling.saved_files import MODULES, OLDEST_SENTENCE_TRANSFORMERS
from csezoo.training.publishing.fingerprints import verify_repository
from csezoo.training.publishing.staging import check_files
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES
from tests.families import family_config
from tests.hub_server import HubServer
from tests.interpreters import run_python
from tests.repositories import tiny_repository

TEXTS = ["", *SENTENCES[:4], "the small cat " * 40]
PROMPT = {"pooling": "prompt", "prompts": ["this sentence : {sentence} means {mask} ."]}
OF_A_RUN = {"README.md", "simcse.svg"}


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A checkpoint whose vectors are neither those of mean pooling nor those of its tokenizer without a template."""
    return tiny_repository(tmp_path_factory.mktemp("published") / "model", kind="roberta", **PROMPT)


@pytest.fixture
def warned(caplog, monkeypatch):
    """Returns the warnings of transformers, which do not reach the root logger."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"__pycache__"}


def change(model) -> None:
    """Changes all vectors, as fine-tuning would."""
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.3 * torch.randn_like(model.get_input_embeddings().weight))


def test_a_changed_model_is_saved_with_all_files_and_a_new_fingerprint(published, tmp_path, warned):
    model = AutoModel.from_pretrained(published)
    before = model.encode(TEXTS)
    change(model)
    model.save_pretrained(tmp_path)
    assert names(tmp_path) == names(published) - OF_A_RUN
    expected = model.encode(TEXTS)
    assert np.abs(expected - before).max() > 0.1
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path)).encode(TEXTS), expected, atol=1e-5, rtol=0)
    (tmp_path / "README.md").write_bytes((published / "README.md").read_bytes())
    assert check_files(tmp_path) == "checked   0 checksums, card, audit"
    files, tokens, vectors = verify_repository(str(tmp_path))
    assert "no checksums" in files and "match" in tokens and "match" in vectors
    assert warned() == []


def test_saving_over_a_checkpoint_replaces_its_fingerprint(published, tmp_path):
    directory = Path(shutil.copytree(published, tmp_path / "model"))
    model = AutoModel.from_pretrained(directory)
    change(model)
    model.save_pretrained(directory)
    assert len(AutoModel.from_pretrained(directory).verify()) == 2


def test_a_warning_says_what_could_not_be_saved(published, tmp_path, warned):
    model = AutoModel.from_pretrained(published)
    model.save_pretrained(tmp_path / "other-weights", state_dict=model.state_dict())
    assert "fingerprint.json" not in names(tmp_path / "other-weights")
    bare = Path(shutil.copytree(published, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*")))
    AutoModel.from_pretrained(bare).save_pretrained(tmp_path / "without-tokenizer")
    assert names(tmp_path / "without-tokenizer") == names(bare) - OF_A_RUN - {"fingerprint.json"}
    other, tokenizer, fingerprint = warned()
    assert other == f"{tmp_path}/other-weights: fingerprint.json was not renewed, so verify() cannot check this model"
    assert tokenizer.endswith("/without-tokenizer: no tokenizer was saved, because the model was loaded without one")
    assert "fingerprint.json was not renewed" in fingerprint


def test_a_training_model_can_be_served_by_sentence_transformers_too(published, tmp_path):
    AutoModelForPreTraining.from_pretrained(published).save_pretrained(tmp_path)
    expected = AutoModel.from_pretrained(published).encode(TEXTS)
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path)).encode(TEXTS), expected, atol=1e-5, rtol=0)


def test_an_adapter_is_saved_alone(published, tmp_path):
    model = AutoModel.from_pretrained(published)
    model.add_adapter(LoraConfig())
    model.save_pretrained(tmp_path)
    assert not names(tmp_path) & {"modules.json", "fingerprint.json", "tokenizer.json"}


def test_sentence_transformers_saves_a_repository_with_the_same_vectors(published, tmp_path):
    model = SentenceTransformer(str(published))
    model.save(str(tmp_path))
    np.testing.assert_array_equal(SentenceTransformer(str(tmp_path)).encode(TEXTS), model.encode(TEXTS))
    assert len(AutoModel.from_pretrained(tmp_path).verify()) == 2


def test_both_ways_to_push_to_the_hub_push_a_complete_repository(published, tmp_path):
    code = f"""
from transformers import AutoModel
model = AutoModel.from_pretrained({str(published)!r}, trust_remote_code=True)
model.push_to_hub("zoo/pushed")
model.save_pretrained("saved", push_to_hub=True, repo_id="zoo/saved")
"""
    with HubServer() as hub:
        done = run_python("-W", "ignore", "-c", code, cwd=tmp_path, **hub.environment(tmp_path / "hf"))
        assert done.returncode == 0, done.stderr
        for repository in ("zoo/pushed", "zoo/saved"):
            assert names(published) - OF_A_RUN <= hub.repos[repository][-1].files.keys()


@pytest.mark.parametrize(("installed", "warnings"), [("5.3.0", 1), (OLDEST_SENTENCE_TRANSFORMERS, 0)])
def test_a_sentence_transformers_that_is_too_old_says_so(published, monkeypatch, caplog, installed, warnings):
    monkeypatch.setattr(sentence_transformers_model, "__version__", installed)
    SentenceTransformer(str(published))
    lines = [record.getMessage() for record in caplog.records if "Sentence Transformers version 5.4" in record.message]
    assert len(lines) == warnings


def test_the_card_names_the_same_oldest_version_and_the_class_is_where_modules_json_says(published):
    assert f"sentence-transformers {OLDEST_SENTENCE_TRANSFORMERS.removesuffix('.0')} or newer" in card(published)
    (module,) = json.loads((published / "modules.json").read_text(encoding="utf-8"))
    assert module == MODULES[0]
    package, _, name = module["type"].rpartition(".")
    assert hasattr(__import__(package, fromlist=[name]), name)


def card(directory: Path) -> str:
    return ModelCard.load(directory / "README.md").text


STRANGER = """
import builtins, json, logging, re

asked, logged = [], []
builtins.input = lambda text="": asked.append(text) or "n"
handler = logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
import transformers
from transformers import AutoModel
logging.getLogger("transformers").addHandler(handler)

results = {}
# The lines of the card: the tokenizer first, because a process that has loaded the model is not asked again.
blocks = re.findall(r"```python\\n(.+?)\\n```", open("published/README.md").read(), re.DOTALL)
loads, tokenizes, sentence_transformers = (block.replace("REPOSITORY", "published") for block in blocks)
transformers.PreTrainedTokenizerFast.from_pretrained("published")
exec("\\n".join(line for line in tokenizes.splitlines() if "model(" not in line))
results["asked"], results["logged"] = len(asked), list(logged)
exec(loads)
results["encode"] = embeddings.tolist()
exec(tokenizes)
results["pooler_output"] = embeddings.tolist()
exec(sentence_transformers)
results["sentence_transformers"] = embeddings.tolist()

changed = AutoModel.from_pretrained("published", trust_remote_code=True)
changed.get_input_embeddings().weight.data *= 1.5
changed.save_pretrained("changed")
again = AutoModel.from_pretrained("changed", trust_remote_code=True)
results["verified"] = again.verify()
results["changed"] = changed.encode(texts).tolist(), again.encode(texts).tolist()

results["errors"] = []
for name in ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "CausalLM"):
    try:
        getattr(transformers, f"AutoModelFor{name}").from_pretrained("published", trust_remote_code=True)
    except ValueError as error:
        results["errors"].append(str(error))
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def stranger(published, tmp_path_factory) -> tuple[dict, Path]:
    """What a process without csezoo gets from the card's lines, from saving, and from classes with other heads."""
    directory = tmp_path_factory.mktemp("stranger")
    (directory / "published").symlink_to(published)
    return run_without_csezoo(STRANGER, directory), directory


def test_the_tokenizer_line_of_the_card_loads_without_a_question_or_a_warning(stranger):
    results, _ = stranger
    assert results["asked"] == 0 and results["logged"] == []


def test_all_lines_of_the_card_give_the_same_vectors(stranger):
    results, _ = stranger
    vectors = np.array(results["pooler_output"])
    normalized = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(results["encode"], normalized, atol=1e-6, rtol=0)
    np.testing.assert_allclose(results["sentence_transformers"], normalized, atol=1e-6, rtol=0)


def test_the_code_of_a_checkpoint_saves_a_complete_repository_by_itself(stranger, published):
    results, directory = stranger
    assert names(directory / "changed") == names(published) - OF_A_RUN
    assert len(results["verified"]) == 2
    before, after = map(np.array, results["changed"])
    np.testing.assert_allclose(before, after, atol=1e-6, rtol=0)
    served = SentenceTransformer(str(directory / "changed"))
    texts = ["A cat sits on the mat.", "A cat is on a mat."]
    np.testing.assert_allclose(served.encode(texts), after, atol=1e-5, rtol=0)


def test_a_class_with_another_head_names_the_export(stranger):
    errors = stranger[0]["errors"]
    assert len(errors) == 5
    for error in errors:
        assert "a sentence encoder has no head for it; `csezoo export DIR --to plain`" in error and "\n" not in error


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft reads it
def test_lora_needs_no_target_modules(published, tmp_path):
    """peft knows which layers of the zoo's models it adapts: those that it adapts in BERT and RoBERTa."""
    model = AutoModel.from_pretrained(published)
    adapted = get_peft_model(model, LoraConfig(r=2, init_lora_weights=False))
    layers = {name.split(".lora_A")[0].split(".")[-1] for name, _ in adapted.named_parameters() if ".lora_A" in name}
    assert layers == {"query", "value"}
    expected = AutoModel.from_pretrained(published).encode(TEXTS)
    assert np.abs(adapted.encode(TEXTS) - expected).max() > 1e-3
    np.testing.assert_allclose(adapted.unload().encode(TEXTS), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_lora_finds_query_and_value_by_their_names_in_other_families():
    model = SimCSEModel(SimCSEConfig(backbone_config=family_config("Qwen3"), pooling="last"))
    adapted = get_peft_model(model, LoraConfig(r=2))
    layers = {name.split(".lora_A")[0].split(".")[-1] for name, _ in adapted.named_parameters() if ".lora_A" in name}
    assert layers == {"q_proj", "v_proj"}
