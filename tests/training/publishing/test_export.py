"""An export has the checkpoint's vectors without its code: as a plain repository and as an ONNX file."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from onnxruntime import InferenceSession
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from csezoo.modeling import SimCSEConfig, SimCSEModel
from csezoo.modeling.backbones import longest_input
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.loading.templates import serving_tokenizer, template_token_ids
from csezoo.training.publishing.audit import audit
from csezoo.training.publishing.export import check_export, export
from csezoo.training.publishing.export_card import LEFT_PADDING, NOT_A_NUMBER
from csezoo.training.publishing.onnx_graph import Graph, largest_difference
from csezoo.training.publishing.plain import TEMPLATE_MASK, separate_template_mask, write_plain_model
from csezoo.training.publishing.repository import save_repository
from csezoo.training.recipes import make_recipe
from tests import methods
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES, tiny_tokenizer
from tests.families import family_config
from tests.hub_server import HubServer
from tests.interpreters import run_python
from tests.modeling.test_methods import CONFIGS, configure, train_one_step

PROMPT = 'this sentence of "{sentence}" means {mask} .'
# Variants of SimCSE that the matrix of methods does not have: a name, and the keys it changes.
VARIANTS = {
    "max": {"pooling": "max"},
    "first-last": {"pooling": "first_last_mean"},
    "embeddings-last": {"pooling": "embeddings_last_mean"},
    "wk": {"pooling": "wk"},
    "last-two": {"pooling": "last2_mean"},
    "kept-batchnorm": {"projection": "batchnorm", "projection_at_test": True},
    "kept-whitening": {"projection_at_test": True, "whitening_size": 8},
    "prompt": {"pooling": "prompt", "prompts": [PROMPT]},
    "full-stop": {"pooling": "prompt", "prompts": [PROMPT], "full_stop": True},
    "denoised": {"pooling": "prompt", "prompts": [PROMPT], "denoise": "always"},
}
WITHOUT_PLAIN_FORM = {*methods.WITHOUT_PLAIN_FORM, "denoised", "wk"}
TEXTS = [*SENTENCES[:3], "cat", "", "the small cat " * 40]


def config_of(name: str, kind: str):
    """The configuration of a method of the matrix, or of one of `VARIANTS`."""
    changes = dict(VARIANTS.get(name, {}))
    if "prompts" in changes:
        changes["prompt_token_ids"] = [template_token_ids(tiny_tokenizer(kind), PROMPT)]
    return configure(name if name in CONFIGS else "simcse", kind, **changes)


def serving(name: str, kind: str):
    """A serving model after one training step, so that no tensor has its initial value, and its tokenizer."""
    config, tokenizer = config_of(name, kind), tiny_tokenizer(kind)
    model = train_one_step(config).model
    if config.whitening_size:
        model.whitening.fit(torch.randn(40, config.hidden_size))
    template = config.prompt_token_ids[0] if config.prompts else template_token_ids(tokenizer)
    longest = longest_input(model.backbone) - config.prefix_positions
    options = {"leading_space": bool(config.prompts), "full_stop": config.full_stop}
    return model, serving_tokenizer(tokenizer, template, max_length=longest, **options)


def save(directory: Path, name: str, kind: str) -> Path:
    model, tokenizer = serving(name, kind)
    recipe = make_recipe({"name": name, "method": model.config.model_type, "base_model": "zoo/tiny"})
    save_repository(directory, model, tokenizer, recipe, [])
    return directory


@pytest.fixture(scope="module")
def plain(kind, tmp_path_factory):
    """All models that have a plain form: their directory, their vectors, and what a process without csezoo returns."""
    directory, expected = tmp_path_factory.mktemp("plain"), {}
    for name in sorted({*CONFIGS, *VARIANTS} - WITHOUT_PLAIN_FORM):
        model, tokenizer = serving(name, kind)
        texts = [*TEXTS, f"the small {tokenizer.mask_token} sees the {TEMPLATE_MASK} house ."]
        expected[name] = model.encode(texts, tokenizer)
        if model.config.pooling == "prompt":
            tokenizer = separate_template_mask(model, tokenizer)
        (directory / name).mkdir()
        write_plain_model(directory / name, model, tokenizer)
    code = f"""
import json
from sentence_transformers import SentenceTransformer
from transformers import AutoModel
results = {{}}
for name in {list(expected)}:
    _, info = AutoModel.from_pretrained(name, output_loading_info=True)
    misfits = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    results[name] = [misfits, SentenceTransformer(name).encode({texts}).tolist()]
print(json.dumps(results))
"""
    return directory, expected, run_without_csezoo(code, directory)


@pytest.mark.parametrize("name", sorted({*CONFIGS, *VARIANTS} - WITHOUT_PLAIN_FORM))
def test_sentence_transformers_returns_the_same_vectors_for_every_plain_form(plain, name):
    _, expected, results = plain
    assert largest_difference(np.array(results[name][1]), expected[name]) <= 1e-5


def test_a_plain_model_fits_the_class_of_its_backbone_and_has_no_custom_code(plain, kind):
    directory, expected, results = plain
    for name in expected:
        config = json.loads((directory / name / "config.json").read_text(encoding="utf-8"))
        assert config["architectures"] == [{"bert": "BertModel", "roberta": "RobertaModel"}[kind]]
        assert "auto_map" not in config and not list((directory / name).glob("*.py"))
        assert results[name][0] == [], "a tensor that transformers would initialise or warn about"


@pytest.mark.parametrize("name", sorted(WITHOUT_PLAIN_FORM))
def test_the_reason_for_having_no_plain_form_is_named(name):
    words = {
        "diffaug": "prefixes",
        "diffaug-same": "prefixes",
        "diffaug-adapter": "adapters",
        "denoised": "bias",
        "simcse-mlm-transform": "layer norm",
        "wk": "layers",
        "simcse-flow": "flow",
        "isbert": "n-gram",
        "isbert-unigrams": "n-gram",
    }
    assert words.get(name, "") in config_of(name, "bert").needs_own_code


def test_a_mask_token_in_a_text_is_not_taken_for_that_of_the_template(plain, kind):
    directory, *_ = plain
    tokenizer = AutoTokenizer.from_pretrained(directory / "prompt")
    ids = tokenizer(f"the {tokenizer.mask_token} cat").input_ids
    assert ids.count(tokenizer.convert_tokens_to_ids(TEMPLATE_MASK)) == ids.count(tokenizer.mask_token_id) == 1


@pytest.fixture(scope="module")
def from_the_hub(tmp_path_factory):
    """A prompt model that adds full stops, on the Hub, exported by the command: checkpoint, export, output."""
    directory = tmp_path_factory.mktemp("hub")
    source = save(directory / "source", "full-stop", "bert")
    command = ["-W", "ignore", "-m", "csezoo.training.cli", "export", "zoo/prompt", "--to", "exports/out", "--onnx"]
    with HubServer() as hub:
        hub.commit("zoo/prompt", "a model", {path.name: path.read_bytes() for path in source.iterdir()})
        done = run_python(*command, cwd=directory, **hub.environment(directory / "hf"))
    assert done.returncode == 0, done.stderr
    return source, directory / "exports" / "out", done.stdout


def test_the_command_lists_every_way_to_use_the_export_and_leaves_no_other_files(from_the_hub):
    _, exported, shown = from_the_hub
    *ways, directory = shown.splitlines()
    assert [way.split("  ")[0] for way in ways] == ["sentence-transformers", "transformers alone", "ONNX Runtime"]
    assert directory == "exports/out" and list(exported.parent.iterdir()) == [exported]


def test_the_audit_finds_nothing_in_exports(plain, from_the_hub):
    directory, expected, _ = plain
    assert [finding for name in expected for finding in audit(directory / name)] == []
    assert audit(from_the_hub[1]) == []  # with a card and an ONNX file


def test_the_code_on_the_card_returns_the_vectors_and_a_difference_is_refused(from_the_hub):
    source, exported, _ = from_the_hub
    card = ModelCard.load(exported / "README.md")
    assert (card.data.library_name, card.data.license) == ("sentence-transformers", "apache-2.0")
    assert "at the mask token of the template" in card.text and "trust_remote_code" not in card.text
    assert LEFT_PADDING in card.text and NOT_A_NUMBER in card.text and "keep the first" not in card.text
    blocks = dict(re.findall(r"With (.+?):\n\n```python\n(.+?)\n```", card.text, re.DOTALL))
    assert list(blocks) == ["sentence-transformers", "transformers alone", "ONNX Runtime"]
    expected = AutoModel.from_pretrained(source).encode(TEXTS)
    assert max(check_export(exported, blocks, TEXTS, expected).values()) <= 1e-5
    with pytest.raises(UserError, match="with ONNX Runtime its vectors differ from the model's by 0.001"):
        check_export(exported, {"ONNX Runtime": blocks["ONNX Runtime"]}, TEXTS, expected * 1.001)


def test_an_export_is_checked_in_a_directory_of_any_name(from_the_hub, tmp_path):
    source, exported, _ = from_the_hub
    copy = shutil.copytree(exported, tmp_path / """a "mouse's" 🐭\\""")
    code = re.search(
        r"With sentence-transformers:\n\n```python\n(.+?)\n```", ModelCard.load(copy / "README.md").text, re.DOTALL
    )
    check_export(copy, {"any": code[1]}, TEXTS, AutoModel.from_pretrained(source).encode(TEXTS))


def test_a_check_of_an_export_that_is_killed_is_one_line(tmp_path):
    killed = {"any": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"}
    with pytest.raises(UserError, match="^the export does not run and was deleted: exit code -9$"):
        check_export(tmp_path, killed, TEXTS, np.zeros((len(TEXTS), 2)))


@pytest.mark.slow
def test_a_truncated_export_has_the_first_dimensions_in_every_way_to_use_it(tmp_path, capsys):
    """Also with layers after the pooling. The check of the export compares each way with the model."""
    source = save(tmp_path / "source", "kept-whitening", "bert")
    main(["export", str(source), "--to", str(tmp_path / "out"), "--onnx", "--truncate_dim", "5"])
    assert len(capsys.readouterr().out.splitlines()) == 4
    expected = AutoModel.from_pretrained(source).encode(TEXTS)[:, :5]
    theirs = SentenceTransformer(str(tmp_path / "out"))
    assert theirs.truncate_dim == 5 and theirs.get_embedding_dimension() == 5
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)
    card = ModelCard.load(tmp_path / "out" / "README.md").text
    assert "cut to their first 5 dimensions" in card and "return all dimensions: keep the first 5" in card
    for size in (0, 8):
        with pytest.raises(UserError, match=f"truncate_dim: {size} must be at least 1 and below 8"):
            export(str(source), str(tmp_path / "other"), truncate_dim=size)


def test_an_onnx_file_takes_batches_of_any_shape(from_the_hub):
    source, exported, _ = from_the_hub
    model = AutoModel.from_pretrained(source)
    session = InferenceSession(exported / "onnx" / "model.onnx")
    tokenizer = AutoTokenizer.from_pretrained(exported)
    for texts in (TEXTS[:1], TEXTS[:4], TEXTS):
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        tokens, vectors = session.run(["last_hidden_state", "sentence_embedding"], dict(batch))
        assert tokens.shape == (*batch["input_ids"].shape, 32)
        np.testing.assert_allclose(vectors, model.encode(texts), atol=1e-5, rtol=0)


def test_an_onnx_file_returns_nan_where_the_model_raises_an_error(from_the_hub):
    _, exported, _ = from_the_hub
    session = InferenceSession(exported / "onnx" / "model.onnx")
    tokenizer = AutoTokenizer.from_pretrained(exported)
    tokenizer.padding_side = "left"
    padded = tokenizer(TEXTS[:4], padding=True, return_tensors="np")
    _, vectors = session.run(None, dict(padded))
    assert (np.isnan(vectors).all(1) == (padded["attention_mask"][:, 0] == 0)).all() and np.isnan(vectors).any()
    # transformers.js cuts a long text after it has added the template, and with its end the mask token.
    cut = {name: values[:, :12] for name, values in tokenizer(TEXTS[:1], return_tensors="np").items()}
    assert np.isnan(session.run(["sentence_embedding"], cut)[0]).all()


def test_the_graph_of_a_causal_model_has_vectors_for_rows_that_are_padded_on_the_left():
    model = SimCSEModel(SimCSEConfig(backbone_config=family_config("Llama"), pooling="last")).eval()
    inputs = torch.tensor([[5, 6, 7], [0, 6, 7]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    torch.testing.assert_close(Graph(model)(*inputs)[1], model(*inputs).pooler_output)


def test_an_export_can_be_evaluated(from_the_hub):
    source, exported, _ = from_the_hub
    encode, _ = load_encoder(str(exported))
    np.testing.assert_allclose(encode(TEXTS), AutoModel.from_pretrained(source).encode(TEXTS), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_model_with_prefixes_is_exported_as_onnx_only(tmp_path, capsys):
    source = save(tmp_path / "source", "diffaug", "roberta")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["export", str(source), "--to", str(tmp_path / "out")])
    line = capsys.readouterr().err.strip()
    assert stop.value.code == 2 and "\n" not in line
    for part in ("keys and values in every attention layer", "trust_remote_code=True", "--onnx"):
        assert part in line
    assert list(tmp_path.iterdir()) == [source]

    assert list(export(str(source), str(tmp_path / "out"), onnx=True)) == ["ONNX Runtime"]
    # Although csezoo, which knows the method, is imported here.
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")(SENTENCES[0]).input_ids
    assert ids == AutoTokenizer.from_pretrained(source)(SENTENCES[0]).input_ids
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"README.md", "config.json", "onnx/model.onnx", "tokenizer.json", "tokenizer_config.json"}
    card = ModelCard.load(tmp_path / "out" / "README.md").text
    assert "keys and values" in card and NOT_A_NUMBER in card
    assert LEFT_PADDING not in card and "cut to their first" not in card


def test_a_refused_export_names_the_problem_and_writes_nothing(bases, tmp_path):
    def refusal(run, to) -> str:
        with pytest.raises(UserError) as error:
            export(str(run), str(to))
        return str(error.value)

    source = save(tmp_path / "source", "simcse", "bert")
    assert f"{source} is not an empty directory" in refusal(source, source)
    assert "is not an empty directory" in refusal(source, source / "config.json")
    assert "has no fingerprint.json, README.md" in refusal(bases["bert"], tmp_path / "out")
    assert "zoo/nothing-here could not be downloaded" in refusal("zoo/nothing-here", tmp_path / "out")
    foreign = shutil.copytree(bases["bert"], tmp_path / "foreign")
    for name in ("README.md", "fingerprint.json"):
        (foreign / name).write_text("# A model\n", encoding="utf-8")
    assert "expected a checkpoint of the zoo, got a BertModel" in refusal(foreign, tmp_path / "out")
    (tmp_path / "file").touch()
    assert re.match("--to: .* cannot be created", refusal(source, tmp_path / "file" / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "foreign", "source"]
