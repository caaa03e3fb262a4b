"""Every door of a published repository opens without a question and returns the vectors of the trained encoder."""

import ast
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from csezoo.training.files import read_json
from csezoo.training.publishing.audit import audit
from csezoo.training.publishing.onnx_graph import largest_difference
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES
from tests.foreign_clients.running import SCRIPTS
from tests.methods import CONFIGS, WITHOUT_PLAIN_FORM
from tests.repositories import PROMPT, save_encoder, tiny_encoder, tiny_repository

# What the matrix of methods does not have: changes to SimCSE.
VARIANTS = {
    "max": {"pooling": "max"},
    "last": {"pooling": "last"},
    "first-last": {"pooling": "first_last_mean"},
    "embeddings-last": {"pooling": "embeddings_last_mean"},
    "last-two": {"pooling": "last2_mean"},
    "wk": {"pooling": "wk"},
    "kept-batchnorm": {"projection": "batchnorm", "projection_at_test": True},
    "kept-whitening": {"projection_at_test": True, "whitening_size": 8},
    "prompt": PROMPT,
    "full-stop": {**PROMPT, "full_stop": True},
    "prompt-layers": {**PROMPT, "lora_rank": 3, "projection": "mlm_transform", "projection_at_test": True},
    "denoised": {**PROMPT, "denoise": "always"},
    "denoised-transform": {**PROMPT, "denoise": "always", "projection": "mlm_transform", "projection_at_test": True},
    "adapted": {
        "pooling": "mean",
        "projection": "none",
        "base_layers": [
            {
                "type": "Dense",
                "in_features": 32,
                "out_features": 24,
                "bias": False,
                "activation_function": "torch.nn.modules.activation.Tanh",
            },
            {"type": "LayerNorm", "dimension": 24},
        ],
        "normalize": True,
        "named_prompts": {"query": "the old ", "document": ""},
        "similarity": "dot",
    },
    "cut": {"projection_at_test": True, "normalize": True, "truncate_dim": 12},
    "normalized-wk": {"pooling": "wk", "normalize": True, "named_prompts": {"query": "the old "}},
    "decoder": {"kind": "Qwen3", "pooling": "last"},
    "decoder-prompt": {"kind": "Qwen3", "pooling": "last", "prompts": ["this sentence : {sentence} means :"]},
}
OWN_FORM = {*WITHOUT_PLAIN_FORM, "wk", "normalized-wk", "denoised", "denoised-transform"}
NAMES = sorted({*CONFIGS, *VARIANTS})
# Where RoBERTa differs from BERT: texts around a sentence, positions after prefixes, the masked LM's transform.
ROBERTA = ["adapted", "denoised", "denoised-transform", "diffaug", "diffaug-lora", "full-stop", "prompt"]
ROBERTA += ["prompt-layers", "simcse", "simcse-mlm-transform"]
TEXTS = [*SENTENCES[:3], "cat", "", "the small cat " * 40]
TEXTS += ["the [MASK] sees the <mask> house .", "the [TEMPLATE MASK] house"]
TOLERANCE = 2e-6  # of float32
TRUSTED_DOORS = ("encode", "pooler_output", "pooler_output, as a tuple", "SentenceTransformer, with trust")
PLAIN_DOORS = ("SentenceTransformer", "tokens")
# Most files of code and their lines, by whether the repository is a plain encoder.
LIMITS = {True: (6, 1400), False: (8, 1850)}
SERVED = ("method", "pooling", "layers", "mask_token_id", "template", "projection", "whitening")
SERVED += ("base_layers", "prompts", "default_prompt_name", "similarity", "truncate_dim")
OPEN_ALL = f"""
import builtins, json, sys
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

questions, results = [], {{}}
builtins.input = lambda question: questions.append(question) or "n"
for name in PLAIN + OWN_FORM:
    trust = name in OWN_FORM  # whose configuration is of a type that transformers does not know
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust)
    batch = tokenizer({TEXTS}, padding=True, truncation=True, return_tensors="pt")
    model = AutoModel.from_pretrained(name, trust_remote_code=True)
    found = {{"encode": model.encode({TEXTS}), "pooler_output": model(**batch).pooler_output}}
    found["pooler_output, as a tuple"] = model(**batch, return_dict=False)[1]
    model.verify()
    if name in OWN_FORM:
        model.save_pretrained("again/" + name)
        AutoModel.from_pretrained("again/" + name, trust_remote_code=True).verify()
    theirs = SentenceTransformer(name, trust_remote_code=True, device="cpu")
    found["SentenceTransformer, with trust"] = theirs.encode({TEXTS})
    misfits = []
    if name in PLAIN:
        found["SentenceTransformer"] = SentenceTransformer(name, device="cpu").encode({TEXTS})
        encoder, info = AutoModel.from_pretrained(name, output_loading_info=True)
        misfits = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
        found["tokens"] = encoder.eval()(**batch).last_hidden_state - model(**batch).last_hidden_state
        found["tokens"] = found["tokens"][batch["attention_mask"].bool()]
        misfits += [] if type(encoder).__module__.startswith("transformers.") else [type(encoder).__name__]
    results[name] = [misfits, {{door: vectors.tolist() for door, vectors in found.items()}}]
imported = sorted({{name.split(".")[0] for name in sys.modules if sys.modules[name]}} & {{"csezoo", "peft"}})
print(json.dumps([results, questions, imported]))
"""


def trained(name: str, kind: str):
    """The encoder of a method of the matrix, or of one of `VARIANTS`."""
    changes = dict(CONFIGS.get(name, VARIANTS.get(name, {})))
    return tiny_encoder(name.split("-")[0] if name in CONFIGS else "simcse", changes.pop("kind", kind), **changes)


def save(directory: Path, name: str, kind: str) -> Path:
    """The repository of `trained`."""
    return save_encoder(directory, trained(name, kind))


@pytest.fixture(scope="module")
def opened(kind, tmp_path_factory):
    """Repositories: their directory, the vectors of the encoders, and what a process without csezoo finds."""
    directory, expected = tmp_path_factory.mktemp("doors"), {}
    names = NAMES if kind == "bert" else ROBERTA
    for name in names:
        encoder = trained(name, kind)
        expected[name] = encoder.encode(TEXTS)
        save_encoder(directory / name, encoder)
    plain = [name for name in names if name not in OWN_FORM]
    own_form = [name for name in names if name in OWN_FORM]
    results, questions, imported = run_without_csezoo(f"PLAIN, OWN_FORM = {plain}, {own_form}\n{OPEN_ALL}", directory)
    assert questions == [] and imported == []
    return directory, expected, results


def test_every_door_returns_the_vectors_of_the_trained_encoder(opened):
    _, expected, results = opened
    wrong = {}
    for name in expected:
        doors = {door: np.array(vectors) for door, vectors in results[name][1].items()}
        assert doors.keys() == {*TRUSTED_DOORS, *([] if name in OWN_FORM else PLAIN_DOORS)}, name
        off = {"tokens": np.abs(doors.pop("tokens")).max()} if name not in OWN_FORM else {}
        off |= {door: largest_difference(vectors, expected[name]) for door, vectors in doors.items()}
        wrong |= {(name, door): difference for door, difference in off.items() if not difference <= TOLERANCE}
    assert wrong == {}


def test_a_plain_encoder_s_own_class_reads_every_tensor_without_trust(opened):
    """So transformers neither initialises one nor warns about one."""
    directory, _, results = opened
    for name in results:
        config = read_json(directory / name / "config.json")
        assert results[name][0] == []
        assert (config["model_type"] == "csezoo") == (name in OWN_FORM), name


def test_the_code_is_csezoo_s_small_and_imports_nothing_that_serving_does_not_need(opened):
    for name in opened[1]:
        assert audit(opened[0] / name) == [], name
        files = sorted((opened[0] / name).rglob("*.py"))
        texts = [file.read_text(encoding="utf-8") for file in files]
        most_files, most_lines = LIMITS[name not in OWN_FORM]
        assert len(files) <= most_files and sum(len(text.splitlines()) for text in texts) <= most_lines, name
        imported = set()
        for node in (node for text in texts for node in ast.walk(ast.parse(text))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.split(".")[0])
        assert imported - sys.stdlib_module_names <= {"torch", "transformers"}, name


def test_a_configuration_has_nothing_of_training(opened):
    for name in opened[1]:
        config = read_json(opened[0] / name / "config.json")
        of_own_form = {"prefix_positions", "adapters", "ngrams", "transform", "denoise"} if name in OWN_FORM else set()
        assert config["csezoo"].keys() <= {*SERVED, *of_own_form}, name
        assert not {"temperature", "generator_config", "contrastive_weight"} & config.keys(), name


def test_a_mask_token_in_a_text_is_not_taken_for_that_of_the_template(opened):
    code = """
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("prompt")
ids = tokenizer(f"the {tokenizer.mask_token} [TEMPLATE MASK] cat").input_ids
print(json.dumps([ids.count(tokenizer.mask_token_id), ids.count(tokenizer.convert_tokens_to_ids("[TEMPLATE MASK]"))]))
"""
    assert run_without_csezoo("import json\n" + code, opened[0]) == [1, 1]


MTEB = f"""
import json, sys
import mteb
from mteb.abstasks.sts import AbsTaskSTS
from sentence_transformers import SentenceTransformer

sys.path.append({str(SCRIPTS)!r})
from mteb_task import description

class LocalPairs(AbsTaskSTS):
    metadata = description("LocalPairs", "pairs")

models = [SentenceTransformer("model", trust_remote_code=trust) for trust in (True, False)]
results = [mteb.evaluate(model, LocalPairs(), cache=None, show_progress_bar=False) for model in models]
print(json.dumps([result.task_results[0].get_score() for result in results]))
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A directory with a repository in `model`."""
    directory = tmp_path_factory.mktemp("one")
    tiny_repository(directory / "model", kind="roberta", **PROMPT)
    return directory


@pytest.mark.slow
def test_a_feature_extraction_pipeline_returns_the_same_token_vectors_with_and_without_trust(one):
    code = f"""
import json
from transformers import pipeline
pipelines = [pipeline("feature-extraction", model="model", trust_remote_code=trust) for trust in (True, False)]
print(json.dumps([extract({TEXTS[:3]}) for extract in pipelines]))
"""
    trusted, plain = run_without_csezoo(code, one)
    for first, second in zip(trusted, plain, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5, rtol=0)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="MTEB NOT TESTED: it needs Python 3.11")
def test_mteb_gives_the_same_score_with_and_without_trust(one, dev_file):
    (one / "pairs").mkdir()
    shutil.copy(dev_file, one / "pairs" / "test.csv")
    trusted, plain = run_without_csezoo(MTEB, one)
    assert trusted == pytest.approx(plain, abs=1e-3)
    assert 0 < abs(trusted) <= 1
