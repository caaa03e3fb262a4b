"""An export is the repository with other formats beside the model, which return the same vectors."""

import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import EvalResult, ModelCard
from onnxruntime import InferenceSession
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from csezoo.modeling.contrastive.published import load_published
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from csezoo.training.publishing.audit import audit
from csezoo.training.publishing.export import export
from csezoo.training.publishing.fingerprints import FORMATS, verify_repository
from csezoo.training.publishing.onnx_graph import Graph
from csezoo.training.publishing.staging import verify_files
from tests.clean_interpreter import run_without_csezoo
from tests.conftest import SENTENCES
from tests.hub_server import HubServer
from tests.interpreters import run_python
from tests.repositories import PROMPT, local_files, tiny_repository

TEXTS = [*SENTENCES[:3], "cat", "", "the small cat " * 40]
CUT = {"projection_at_test": True, "whitening_size": 8}
DEFAULT_PROMPT = {"named_prompts": {"query": "the old "}, "default_prompt_name": "query"}
OF_EXPORT = {"README.md", "fingerprint.json"}  # files that an export changes


def names(directory: Path) -> set[str]:
    return set(local_files(directory))


@pytest.fixture(scope="module")
def from_the_hub(tmp_path_factory):
    """A prompt model that adds full stops, on the Hub, exported by the command: repository, export, output."""
    directory = tmp_path_factory.mktemp("hub")
    source = tiny_repository(directory / "source", full_stop=True, **PROMPT, **DEFAULT_PROMPT)
    command = ["-W", "ignore", "-m", "csezoo.training.cli", "export", "zoo/prompt", "--to", "exports/out", "--onnx"]
    with HubServer() as hub:
        hub.commit("zoo/prompt", "a model", local_files(source))
        done = run_python(*command, cwd=directory, **hub.environment(directory / "hf"))
    assert done.returncode == 0, done.stderr
    return source, directory / "exports" / "out", done.stdout


def test_an_export_is_the_repository_with_a_file_more(from_the_hub):
    source, exported, shown = from_the_hub
    assert shown.splitlines() == ["exports/out"] and list(exported.parent.iterdir()) == [exported]
    assert names(exported) == {*names(source), "onnx/model.onnx"}
    assert dict(local_files(source).items() - local_files(exported).items()).keys() == OF_EXPORT
    assert audit(exported) == []
    checksums = read_json(exported / "fingerprint.json")["files"]
    assert "onnx/model.onnx" in checksums and len(verify_repository(str(exported))) == 3


def test_the_code_on_the_card_returns_the_vectors(from_the_hub):
    source, exported, _ = from_the_hub
    text = ModelCard.load(exported / "README.md").text
    assert text.index("## Use") < text.index("## Formats") < text.index("## Training")
    assert "a row that is padded on the left or lacks the template's mask token." in text
    assert "keep the first" not in text
    (block,) = re.findall(r"```python\n(.+?)\n```", text[text.index("## Formats") :], re.DOTALL)
    lines = [f"texts = {TEXTS}" if line.startswith("texts =") else line for line in block.splitlines()]
    code = "\n".join(["import json", *lines, "print(json.dumps(embeddings.tolist()))"])
    embeddings = run_without_csezoo(code.replace("REPOSITORY", str(exported)), exported)
    np.testing.assert_allclose(embeddings, load_published(source).encode(TEXTS), atol=1e-5, rtol=0)


def test_an_onnx_file_takes_batches_of_any_shape(from_the_hub):
    source, exported, _ = from_the_hub
    model = load_published(source)
    session = InferenceSession(exported / "onnx" / "model.onnx")
    tokenizer = AutoTokenizer.from_pretrained(exported)
    for texts in (TEXTS[:1], TEXTS[:4], TEXTS):
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        tokens, vectors = session.run(["last_hidden_state", "sentence_embedding"], dict(batch))
        assert tokens.shape == (*batch["input_ids"].shape, 32)
        np.testing.assert_allclose(vectors, model.encode(texts, prompt=""), atol=1e-5, rtol=0)


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


def test_the_graph_of_a_causal_model_has_vectors_for_rows_that_are_padded_on_the_left(tmp_path):
    model = load_published(tiny_repository(tmp_path / "source", kind="Llama", pooling="last"))
    inputs = torch.tensor([[5, 6, 7], [0, 6, 7]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    torch.testing.assert_close(Graph(model)(*inputs)[1], model(*inputs).pooler_output)


def test_a_cut_export_has_the_first_dimensions_by_every_door(tmp_path, capsys):
    """Also with layers after the pooling."""
    source = tiny_repository(tmp_path / "source", **CUT)
    main(["export", str(source), "--to", str(tmp_path / "out"), "--truncate_dim", "5"])
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    expected = load_published(source).encode(TEXTS)[:, :5]
    np.testing.assert_allclose(load_published(tmp_path / "out").encode(TEXTS), expected, atol=1e-6)
    theirs = SentenceTransformer(str(tmp_path / "out"))
    assert theirs.truncate_dim == 5 and theirs.get_embedding_dimension() == 5
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-6)
    assert names(tmp_path / "out") == names(source) and len(verify_repository(str(tmp_path / "out"))) == 3
    card = ModelCard.load(tmp_path / "out" / "README.md").text
    assert "cut to their first 5 of 8 dimensions" in card and "return all of them: keep the first 5" in card
    for size in (0, 8):
        with pytest.raises(UserError, match=f"truncate_dim: {size} must be at least 1 and below 8"):
            export(str(source), str(tmp_path / "other"), truncate_dim=size)


def test_the_card_of_a_copy_names_the_place_where_the_copy_will_be(tmp_path):
    source = tiny_repository(tmp_path / "source", **CUT)
    card = source / "README.md"
    card.write_text(card.read_text(encoding="utf-8").replace("REPOSITORY", "zoo/other"), encoding="utf-8")
    export(str(source), str(tmp_path / "five"), truncate_dim=5)
    text = (tmp_path / "five" / "README.md").read_text(encoding="utf-8")
    assert 'SentenceTransformer("zoo/other"' in card.read_text(encoding="utf-8") and "zoo/other" not in text
    assert 'SentenceTransformer("REPOSITORY"' in text and 'AutoModel.from_pretrained("REPOSITORY"' in text


def test_a_cut_export_can_be_cut_further_without_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    source = tiny_repository(tmp_path / "source", **CUT)
    export(str(source), str(tmp_path / "five"), truncate_dim=5)
    export(str(tmp_path / "five"), str(tmp_path / "three"), truncate_dim=3)
    assert load_published(tmp_path / "three").embedding_size == 3
    assert "are those of the model again" not in caplog.text


def test_the_scores_of_the_complete_vectors_are_not_those_of_a_cut_export(tmp_path):
    source = tiny_repository(tmp_path / "source", **CUT)
    card = ModelCard.load(source / "README.md")
    score = {"dataset_type": "mteb/sts12-sts", "dataset_name": "STS12", "metric_type": "cosine_spearman"}
    card.data.model_name, card.data.eval_results = "tiny", [EvalResult("STS", **score, metric_value=70.0)]
    card.save(source / "README.md")
    (source / "results.json").write_text("{}")
    export(str(source), str(tmp_path / "cut"), truncate_dim=5)
    card = ModelCard.load(tmp_path / "cut" / "README.md")
    assert card.data.eval_results is None and "model_name" not in card.data.to_dict()
    assert "## Results\n\nScores, pictures and neighbours are those of all 8 dimensions. This copy" in card.text
    assert not (tmp_path / "cut" / "results.json").exists()
    export(str(tmp_path / "cut"), str(tmp_path / "onnx"), onnx=True)
    text = ModelCard.load(tmp_path / "onnx" / "README.md").text
    assert "cut to their first 5 of 8 dimensions" in text and "are those of all 8 dimensions" in text


@pytest.mark.slow
def test_an_export_of_an_export_has_its_own_formats_alone(tmp_path):
    source = tiny_repository(tmp_path / "source", **CUT)
    export(str(source), str(tmp_path / "full"), onnx=True)
    export(str(tmp_path / "full"), str(tmp_path / "cut"), truncate_dim=5)
    assert not any((tmp_path / "cut" / name).exists() for name in FORMATS), "a file with other vectors"
    card = ModelCard.load(tmp_path / "cut" / "README.md").text
    assert card.count("## Formats") == 1 and "ONNX" not in card and "## Training" in card
    export(str(tmp_path / "full"), str(tmp_path / "both"), onnx=True, truncate_dim=5)
    assert "a row that is padded on the left.\n" in (tmp_path / "both" / "README.md").read_text(encoding="utf-8")
    session = InferenceSession(tmp_path / "both" / "onnx" / "model.onnx")
    batch = AutoTokenizer.from_pretrained(source)(TEXTS, padding=True, truncation=True, return_tensors="np")
    (vectors,) = session.run(["sentence_embedding"], dict(batch))
    np.testing.assert_allclose(vectors, load_published(source).encode(TEXTS)[:, :5], atol=1e-5)


def test_a_format_of_earlier_weights_is_neither_published_nor_verified(from_the_hub, tmp_path):
    """Somebody saves a changed model into the directory of an export."""
    directory = shutil.copytree(from_the_hub[1], tmp_path / "export")
    model = load_published(directory)
    model.backbone.embeddings.word_embeddings.weight.data *= 2
    model.save_pretrained(directory)
    problem = "onnx/model.onnx has no checksum: it may be of other weights; delete it and export again"
    with pytest.raises(UserError, match=problem):
        verify_files(directory)
    with pytest.raises(UserError, match=problem):
        verify_repository(str(directory))
    export(str(directory), str(tmp_path / "again"), truncate_dim=5)
    verify_files(tmp_path / "again")


@pytest.mark.slow
def test_a_model_without_a_plain_form_is_exported_too(tmp_path):
    source = tiny_repository(tmp_path / "source", "diffaug", "roberta")
    export(str(source), str(tmp_path / "out"), onnx=True)
    assert names(tmp_path / "out") == {*names(source), "onnx/model.onnx"} and audit(tmp_path / "out") == []


def test_a_run_is_exported_from_its_best_model(finished, tmp_path):
    export(str(finished), str(tmp_path / "out"), truncate_dim=5)
    assert names(tmp_path / "out") == names(finished / "best")


def test_a_refused_export_names_the_problem_and_writes_nothing(bases, tmp_path):
    def refusal(run, to, truncate_dim=5) -> str:
        with pytest.raises(UserError) as error:
            export(str(run), str(to), truncate_dim=truncate_dim)
        return str(error.value)

    source = tiny_repository(tmp_path / "source")
    assert "give --onnx or --truncate_dim for other formats" in refusal(source, tmp_path / "out", None)
    assert f"{source} is not an empty directory" in refusal(source, source)
    assert "is not an empty directory" in refusal(source, source / "config.json")
    assert "has no fingerprint.json" in refusal(bases["bert"], tmp_path / "out")
    assert "zoo/nothing-here could not be downloaded" in refusal("zoo/nothing-here", tmp_path / "out")
    foreign = shutil.copytree(bases["bert"], tmp_path / "foreign")
    for name in ("README.md", "fingerprint.json"):
        (foreign / name).write_text("# A model\n", encoding="utf-8")
    assert "there is no key csezoo with a pooling" in refusal(foreign, tmp_path / "out")
    (tmp_path / "file").touch()
    assert re.match("--to: .* cannot be created", refusal(source, tmp_path / "file" / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "foreign", "source"]


@pytest.mark.parametrize("size", ["5GB", "20KB"])
def test_what_save_pretrained_wrote_is_exported_in_parts_too(tmp_path, size):
    model = load_published(tiny_repository(tmp_path / "source", whitening_size=8))
    model.save_pretrained(tmp_path / "saved", max_shard_size=size)
    assert (tmp_path / "saved" / "model.safetensors").is_file() == (size == "5GB")
    export(str(tmp_path / "saved"), str(tmp_path / "cut"), truncate_dim=4)
    verify_repository(str(tmp_path / "cut"))
    np.testing.assert_allclose(load_published(tmp_path / "cut").encode(TEXTS), model.encode(TEXTS)[:, :4], atol=1e-6)
    card = ModelCard.load(tmp_path / "cut" / "README.md")
    assert "cut to their first 4 of 8 dimensions" in card.text and card.data.library_name == "sentence-transformers"
