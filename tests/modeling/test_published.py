"""A published repository that is saved again, through any door, can be read by the others, or says what is lost."""

import json
import logging
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base import model as sentence_transformers_model
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from csezoo.modeling import (
    DiffAugConfig,
    DiffAugForContrastiveLearning,
    PrdSimCSEForContrastiveLearning,
    SimCSEConfig,
    SimCSEForContrastiveLearning,
    SimCSEModel,
    method,
)
from csezoo.modeling.contrastive.published import TEMPLATE_MASK, load_published
from csezoo.modeling.serving.configuration_csezoo import CsezooConfig
from csezoo.modeling.serving.own_form_csezoo import CsezooOwnFormModel
from csezoo.training.files import read_json, write_json
from csezoo.training.publishing.fingerprints import verify_repository
from csezoo.training.publishing.staging import verify_files
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES
from tests.families import family_config
from tests.hub_server import HubServer
from tests.interpreters import run_python
from tests.repositories import PROMPT, tiny_encoder, tiny_repository

TEXTS = ["", *SENTENCES[:4], "the small cat " * 40]
OF_THE_CARD = ["A cat sits on the mat.", "A cat is on a mat."]
OF_A_RUN = {"README.md", "simcse.svg", "isbert.svg"}
OLDEST = CsezooOwnFormModel.settings["__version__"]["sentence_transformers"]  # that reads what has no plain form


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A repository whose vectors are neither those of mean pooling nor those of its tokenizer without a template."""
    changes = {**PROMPT, "projection_at_test": True, "whitening_size": 8}
    return tiny_repository(tmp_path_factory.mktemp("published") / "model", kind="roberta", **changes)


@pytest.fixture(scope="module")
def own_form(tmp_path_factory) -> Path:
    """A repository that has no plain form."""
    return tiny_repository(tmp_path_factory.mktemp("own_form") / "model", method="isbert")


@pytest.fixture(scope="module")
def published_cls(tmp_path_factory) -> Path:
    """A repository of the first token's vectors, without a projection."""
    return tiny_repository(tmp_path_factory.mktemp("published_cls") / "model")


@pytest.fixture(params=["published", "own_form"])
def repository(request) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture
def warned(caplog, monkeypatch):
    """Returns the warnings of transformers, which do not reach the root logger."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def files_of(directory: Path) -> set[str]:
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name} - OF_A_RUN


def change(model) -> None:
    """Changes all vectors, as fine-tuning would."""
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.3 * torch.randn_like(model.get_input_embeddings().weight))


def served(directory: Path, trust: bool) -> np.ndarray:
    return SentenceTransformer(str(directory), trust_remote_code=trust, device="cpu").encode(TEXTS)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-6 * max(1.0, np.abs(expected).max()), rtol=0)


def test_a_changed_model_is_saved_with_all_files_and_a_new_fingerprint(repository, tmp_path, warned):
    model = load_published(repository)
    before = model.encode(TEXTS)
    change(model)
    model.save_pretrained(tmp_path)
    assert files_of(tmp_path) == files_of(repository)
    expected = model.encode(TEXTS)
    assert np.abs(expected - before).max() > 0.05
    close(load_published(tmp_path).encode(TEXTS), expected)
    close(served(tmp_path, trust=True), expected)
    if model.config.is_plain:
        close(served(tmp_path, trust=False), expected)
    shutil.copy(repository / "README.md", tmp_path)
    assert verify_files(tmp_path) == "checked   0 checksums, card, audit"
    files, tokens, vectors = verify_repository(str(tmp_path))
    assert "no checksums" in files and "match" in tokens and "match" in vectors
    assert warned() == []


def test_a_training_model_of_a_repository_has_the_attention_that_was_asked_for(published):
    model = SimCSEForContrastiveLearning.from_pretrained(published, attn_implementation="eager")
    assert model.model.backbone.config._attn_implementation == "eager"


def test_a_family_without_sdpa_can_be_trained_further(tmp_path):
    config = DiffAugConfig(backbone_config=family_config("MPNet"), views_module="adapter")
    DiffAugForContrastiveLearning(config).serving_model().save_pretrained(tmp_path)
    model = DiffAugForContrastiveLearning.from_pretrained(tmp_path)
    assert model.model.backbone.config._attn_implementation == "eager"


@pytest.mark.parametrize("damage", ["missing", "unexpected", "mis-shaped"])
def test_the_error_of_a_damaged_repository_names_the_tensor(repository, tmp_path, damage):
    shutil.copytree(repository, tmp_path, dirs_exist_ok=True)
    state = load_file(tmp_path / "model.safetensors")
    victim = next(name for name in state if name.endswith("key.weight"))
    if damage == "missing":
        del state[victim]
    elif damage == "unexpected":
        victim = "encoder.stranger"
        state[victim] = torch.zeros(1)
    else:
        state[victim] = torch.zeros(3, 3)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"does not fit its config.json: {damage} .*{re.escape(victim)}$"):
        load_published(tmp_path)


def test_saving_over_a_repository_replaces_its_fingerprint(repository, tmp_path):
    directory = Path(shutil.copytree(repository, tmp_path / "model"))
    model = load_published(directory)
    change(model)
    model.save_pretrained(directory)
    assert len(load_published(directory).verify()) == 2


def test_a_model_in_half_precision_is_saved_with_the_fingerprint_of_its_weights_in_float32(repository, tmp_path):
    load_published(repository, dtype=torch.bfloat16).save_pretrained(tmp_path)
    assert load_published(tmp_path).dtype == torch.bfloat16
    largest = load_published(tmp_path, dtype=torch.float32).verify()[1].split("largest difference ")[1].split()[0]
    assert float(largest) < 1e-5


def test_what_a_call_sets_in_the_tokenizer_is_not_saved(published, tmp_path):
    model = load_published(published)
    model.tokenizer(TEXTS, padding=True, truncation=True, max_length=20)
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (published / name).read_bytes()


def test_a_warning_says_what_could_not_be_saved(published, own_form, tmp_path, warned):
    model = load_published(published)
    model.save_pretrained(tmp_path / "other-weights", state_dict=model.state_dict())
    assert files_of(tmp_path / "other-weights") == files_of(published) - {"fingerprint.json"}
    close(load_published(tmp_path / "other-weights").encode(TEXTS), model.encode(TEXTS))
    bare = Path(shutil.copytree(own_form, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*")))
    load_published(bare).save_pretrained(tmp_path / "without-tokenizer")
    assert files_of(tmp_path / "without-tokenizer") == files_of(bare) - {"fingerprint.json"}
    other, tokenizer, fingerprint = warned()
    assert other == f"{tmp_path}/other-weights: fingerprint.json was not renewed, so verify() cannot check this model"
    assert tokenizer.endswith("/without-tokenizer: no tokenizer was saved, because the model was loaded without one")
    assert "fingerprint.json was not renewed" in fingerprint


def test_an_encoder_with_a_prompt_is_not_saved_without_its_tokenizer(published, tmp_path):
    encoder = SimCSEModel.from_pretrained(published)
    encoder.tokenizer = None
    with pytest.raises(ValueError, match="a prompt is part of the tokenizer; set the model's `tokenizer` before"):
        encoder.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_training_model_is_saved_as_a_checkpoint_and_its_encoder_as_a_repository(published, tmp_path):
    training = SimCSEForContrastiveLearning.from_pretrained(published)
    training.save_pretrained(tmp_path / "checkpoint")
    assert files_of(tmp_path / "checkpoint") == {"config.json", "model.safetensors"}
    with pytest.raises(ValueError, match="output_loading_info: a published repository fits as a whole"):
        SimCSEForContrastiveLearning.from_pretrained(published, output_loading_info=True)
    again = AutoModelForPreTraining.from_pretrained(tmp_path / "checkpoint")
    assert type(again) is SimCSEForContrastiveLearning
    again.model.tokenizer = training.model.tokenizer
    again.model.save_pretrained(tmp_path / "repository")
    assert files_of(tmp_path / "repository") == files_of(published)
    close(served(tmp_path / "repository", trust=False), load_published(published).encode(TEXTS))


def test_a_model_in_training_publishes_the_vectors_of_its_encoder_without_dropout(tmp_path):
    encoder = tiny_encoder(**PROMPT, denoise="always")  # whose biases are a table in the repository
    expected = encoder.encode(TEXTS)
    encoder.train().save_pretrained(tmp_path)
    close(load_published(tmp_path).encode(TEXTS), expected)


@pytest.mark.parametrize("changes", [{}, PROMPT], ids=["cls", "prompt"])
def test_the_average_of_a_model_that_is_trained_further_is_saved_as_a_complete_repository(changes, tmp_path):
    repository = tiny_repository(tmp_path / "repository", **changes)
    training = SimCSEForContrastiveLearning.from_pretrained(repository, ema_decay=0.9)
    training.serving_model().save_pretrained(tmp_path / "average")
    close(load_published(tmp_path / "average").encode(TEXTS), load_published(repository).encode(TEXTS))


@pytest.mark.parametrize(("source", "tensor"), [("diffaug", "prefixes"), ("isbert", "ngrams.")])
def test_a_method_refuses_a_repository_with_tensors_that_it_cannot_read(source, tensor, tmp_path):
    repository = tiny_repository(tmp_path, source)
    with pytest.raises(ValueError, match=f"the repository has {tensor}.*, which SimCSEModel cannot read"):
        SimCSEForContrastiveLearning.from_pretrained(repository)


@pytest.mark.parametrize("name", ["diffcse", "l2pcsr+diffcse", "diffaug+diffcse"])
def test_the_encoders_of_training_start_from_that_of_the_repository(name, published_cls):
    training = method(name)[2].from_pretrained(published_cls)
    states = training.discriminator.state_dict(), training.model.backbone.state_dict()
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


def test_a_method_that_keeps_its_projection_begins_with_a_new_one_in_training_only(published_cls):
    training = PrdSimCSEForContrastiveLearning.from_pretrained(published_cls)
    close(training.model.encode(TEXTS), load_published(published_cls).encode(TEXTS))


def test_the_mask_token_of_a_template_is_no_token_of_the_text(tmp_path):
    training = SimCSEForContrastiveLearning.from_pretrained(tiny_repository(tmp_path, **PROMPT))
    ids = torch.tensor([training.model.tokenizer("the cat").input_ids])
    kept = training.model.tokenizer.convert_ids_to_tokens(ids[training.maskable(ids, torch.ones_like(ids))])
    assert TEMPLATE_MASK not in kept and "cat" in kept


def test_an_adapter_is_saved_alone(repository, tmp_path):
    model = load_published(repository)
    model.add_adapter(LoraConfig(r=2))
    model.save_pretrained(tmp_path)
    assert files_of(tmp_path) == {"adapter_config.json", "adapter_model.safetensors"}


def test_sentence_transformers_with_trust_saves_a_complete_repository(repository, tmp_path):
    expected = load_published(repository).encode(TEXTS)
    model = SentenceTransformer(str(repository), trust_remote_code=True, device="cpu")
    model.save(str(tmp_path))
    code = {name for name in files_of(repository) if name.endswith(".py")}
    assert code | {"fingerprint.json", "modules.json"} <= files_of(tmp_path)
    close(served(tmp_path, trust=True), expected)
    again = load_published(tmp_path)
    close(again.encode(TEXTS), expected)
    assert len(again.verify()) == 2


def test_layers_that_sentence_transformers_trained_are_those_of_the_zoo_s_class(published, tmp_path):
    model = SentenceTransformer(str(published), trust_remote_code=True, device="cpu")
    change(model[0].model)
    with torch.no_grad():
        model[-1].linear.weight.mul_(2)
    model.save(str(tmp_path))
    close(load_published(tmp_path).encode(TEXTS), model.encode(TEXTS))


def test_sentence_transformers_without_trust_saves_the_vectors_but_not_the_code(published, tmp_path):
    expected = load_published(published).encode(TEXTS)
    SentenceTransformer(str(published), device="cpu").save(str(tmp_path))
    close(served(tmp_path, trust=False), expected)
    again = load_published(tmp_path)  # with the installed code
    close(again.encode(TEXTS), expected)
    with pytest.raises(OSError, match="fingerprint.json: the model was loaded from no repository that has one"):
        again.verify()
    with pytest.raises(OSError, match="does not appear to have a file named configuration_csezoo.py"):
        AutoModel.from_pretrained(tmp_path, trust_remote_code=True)
    again.save_pretrained(tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(published)


def test_settings_that_sentence_transformers_without_trust_has_saved_are_followed(published, tmp_path):
    model = SentenceTransformer(str(published), device="cpu")
    model.prompts, model.default_prompt_name = {"query": "the cat: ", "document": ""}, "query"
    model.similarity_fn_name, model.truncate_dim = "dot", 5
    model.save(str(tmp_path))
    again = load_published(tmp_path)
    close(again.encode(TEXTS), served(tmp_path, trust=False))
    close(again.encode(TEXTS, prompt_name="document"), model.encode(TEXTS, prompt_name="document"))
    assert (again.similarity_fn_name, again.embedding_size) == ("dot", 5)
    again.save_pretrained(tmp_path / "again")
    close(served(tmp_path / "again", trust=True), model.encode(TEXTS))
    settings = tmp_path / "config_sentence_transformers.json"
    saved = read_json(settings)
    for key, value in (("similarity_fn_name", "other"), ("similarity_fn_name", ["dot"]), ("prompts", ["a"])):
        write_json(settings, {**saved, key: value})
        with pytest.raises(ValueError, match="config.json has .*; put back the file"):
            load_published(tmp_path)


def test_settings_that_sentence_transformers_with_trust_cannot_save_are_named(published, tmp_path, warned):
    model = SentenceTransformer(str(published), trust_remote_code=True, device="cpu")
    model.similarity_fn_name, model.truncate_dim = "dot", 5
    model.save(str(tmp_path))
    assert sum("truncate_dim, similarity_fn_name are those of the model again" in line for line in warned()) == 1
    close(served(tmp_path, trust=True), served(published, trust=True))


def test_a_model_with_more_word_vectors_is_saved(repository, tmp_path):
    model = load_published(repository)
    expected = model.encode(TEXTS)
    model.resize_token_embeddings(model.get_input_embeddings().num_embeddings + 3)
    model.save_pretrained(tmp_path)
    close(load_published(tmp_path).encode(TEXTS), expected)


def test_the_encoder_s_own_class_saves_the_encoder_and_the_zoo_s_class_says_what_is_lost(published, tmp_path):
    AutoModel.from_pretrained(published).save_pretrained(tmp_path)
    assert files_of(tmp_path) == {"config.json", "model.safetensors"}
    with pytest.raises(
        ValueError, match=r"config.json has the template 'this .*, which the template in tokenizer.json"
    ):
        load_published(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(published / name, tmp_path)
    on_top = "WordWeights - Pooling - Dense - Dense"
    with pytest.raises(ValueError, match=f"config.json has {on_top} after the encoder, modules.json has nothing"):
        load_published(tmp_path)


def test_a_configuration_that_was_loaded_without_trust_can_be_changed_and_given(published):
    config = AutoConfig.from_pretrained(published, attn_implementation="eager")
    assert not isinstance(config, CsezooConfig)
    model = AutoModel.from_pretrained(published, config=config, trust_remote_code=True)
    assert model.backbone.config._attn_implementation == "eager"
    assert model.verify()


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
            assert files_of(published) <= hub.repos[repository][-1].files.keys()


def test_sentence_transformers_knows_the_length_of_the_vectors_without_a_plain_form(tmp_path):
    own = tiny_repository(tmp_path / "own", pooling="wk", whitening_size=8)
    model = SentenceTransformer(str(own), trust_remote_code=True, device="cpu")
    assert model.get_embedding_dimension() == model.encode(TEXTS).shape[1] == 8


@pytest.mark.parametrize(("installed", "warnings"), [("5.3.0", 1), (OLDEST, 0)])
def test_a_sentence_transformers_that_is_too_old_for_its_own_form_says_so(
    published, own_form, monkeypatch, caplog, installed, warnings
):
    monkeypatch.setattr(sentence_transformers_model, "__version__", installed)
    SentenceTransformer(str(published), device="cpu")
    assert not [record for record in caplog.records if "Sentence Transformers version" in record.message]
    SentenceTransformer(str(own_form), trust_remote_code=True, device="cpu")
    lines = [record.getMessage() for record in caplog.records if "Sentence Transformers version 5.4" in record.message]
    assert len(lines) == warnings


def test_the_card_names_the_same_oldest_version_and_the_class_is_where_modules_json_says(published, own_form):
    assert "the modules of sentence-transformers, 3.0 or newer" in card(published)
    assert f"sentence-transformers {OLDEST.removesuffix('.0')} or newer" in card(own_form)
    (module,) = json.loads((own_form / "modules.json").read_text(encoding="utf-8"))
    package, _, name = module["type"].rpartition(".")
    assert hasattr(__import__(package, fromlist=[name]), name)


def card(directory: Path) -> str:
    return ModelCard.load(directory / "README.md").text


STRANGER = """
import builtins, json, logging, re

asked, logged = [], []
builtins.input = lambda text="": asked.append(text) or "n"
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: logged.append(record.getMessage())
import torch, transformers
from transformers import AutoModel
logging.getLogger("transformers").addHandler(handler)
logging.getLogger("sentence_transformers").addHandler(handler)

# The lines of the card, as written: sentence-transformers first, then transformers alone.
results = {}
blocks = re.findall(r"```python\\n(.+?)\\n```", open("published/README.md").read(), re.DOTALL)
for name, block in zip(("sentence_transformers", "transformers"), blocks, strict=True):
    assert f"from {name} import" in block
    exec(block.replace("REPOSITORY", "published"))
    results[name] = embeddings.tolist()
trusted = AutoModel.from_pretrained("published", trust_remote_code=True)
texts = ["A cat sits on the mat.", "A cat is on a mat."]
results["asked"], results["logged"] = asked[:], logged[:]

words = trusted.get_input_embeddings().weight.clone()
trusted.get_input_embeddings().weight.data *= 1.5
trusted.save_pretrained("changed")
again = AutoModel.from_pretrained("changed", trust_remote_code=True)
results["verified"] = again.verify()
results["changed"] = trusted.encode(texts).tolist(), again.encode(texts).tolist()

results["heads"] = {}
for name in ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "CausalLM"):
    try:
        model = getattr(transformers, f"AutoModelFor{name}").from_pretrained("published", trust_remote_code=not PLAIN)
        results["heads"][name] = torch.equal(model.get_input_embeddings().weight, words)
    except ValueError as error:
        results["heads"][name] = str(error)
print(json.dumps(results))
"""


def strange(repository: Path, directory: Path, plain: bool) -> tuple[dict, Path]:
    """What a process without csezoo gets from the card's lines, from saving, and from classes with other heads."""
    shutil.copytree(repository, directory / "published")
    return run_without_csezoo(f"PLAIN = {plain}\n{STRANGER}", directory), directory


@pytest.fixture(scope="module")
def strangers(published, own_form, tmp_path_factory):
    return {
        True: strange(published, tmp_path_factory.mktemp("stranger"), plain=True),
        False: strange(own_form, tmp_path_factory.mktemp("stranger"), plain=False),
    }


@pytest.fixture(params=[True, False], ids=["published", "own_form"])
def both(request, published, own_form, strangers):
    """A repository, and what a stranger gets from it."""
    return published if request.param else own_form, *strangers[request.param]


def test_the_lines_of_the_card_load_without_a_question_or_a_warning(both):
    _, results, _ = both
    assert results["asked"] == [] and results["logged"] == []


def test_all_lines_of_the_card_give_the_same_vectors(both):
    repository, results, _ = both
    expected = load_published(repository).encode(OF_THE_CARD, normalize_embeddings=True)
    for door in ("sentence_transformers", "transformers"):
        np.testing.assert_allclose(results[door], expected, atol=1e-6, rtol=0)


def test_the_code_of_a_repository_saves_a_complete_one_by_itself(both):
    repository, results, directory = both
    assert files_of(directory / "changed") == files_of(repository)
    assert len(results["verified"]) == 2
    before, after = map(np.array, results["changed"])
    np.testing.assert_array_equal(before, after)
    close(load_published(directory / "changed").encode(OF_THE_CARD), after)


def test_a_class_with_another_head_starts_from_a_plain_encoder(strangers):
    heads, errors = (strangers[plain][0]["heads"] for plain in (True, False))
    assert list(heads.values()) == [True] * 5
    for error in errors.values():
        assert "CsezooConfig" in error  # which is not one of those that this class knows


def adapted_by(model, **options):
    """The model with LoRA, and the names of the layers that peft has adapted."""
    adapted = get_peft_model(model, LoraConfig(r=2, **options))
    return adapted, {name.split(".")[-4] for name, _ in adapted.named_parameters() if ".lora_A." in name}


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft reads it
def test_lora_needs_no_target_modules(repository):
    """peft knows which layers of the zoo's models it adapts: those that it adapts in BERT and RoBERTa."""
    adapted, layers = adapted_by(load_published(repository), init_lora_weights=False)
    assert layers == {"query", "value"}
    expected = load_published(repository).encode(TEXTS)
    assert np.abs(adapted.encode(TEXTS) - expected).max() > 1e-3
    np.testing.assert_allclose(adapted.unload().encode(TEXTS), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_lora_finds_query_and_value_by_their_names_in_other_families():
    model = SimCSEModel(SimCSEConfig(backbone_config=family_config("Qwen3"), pooling="last"))
    assert adapted_by(model)[1] == {"q_proj", "v_proj"}


def test_a_pickle_has_no_token_of_the_hub(published):
    """A pickle of the model would carry it to other people."""
    secret = "hf_" + "secret" * 5
    model = AutoModel.from_pretrained(published, trust_remote_code=True, token=secret)
    assert secret.encode() not in pickle.dumps(model) and model.verify()
