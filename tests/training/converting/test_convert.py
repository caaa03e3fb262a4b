"""A checkpoint in a released layout becomes a repository of the zoo with the vectors of its authors' evaluation."""

import re
import subprocess
import sys

import pytest
import torch
from huggingface_hub import ModelCard

from csezoo.modeling.contrastive.published import load_published
from csezoo.training.cli.parser import main
from csezoo.training.converting.convert import convert
from csezoo.training.files import read_json
from csezoo.training.publishing.audit import audit
from csezoo.training.publishing.fingerprints import verify_repository
from csezoo.training.recipes.released import kinds, released
from tests.training.converting.authors import KINDS, TEXTS, authors_vectors, write_checkpoint


@pytest.fixture(scope="module", params=KINDS)
def converted(request, kind, tmp_path_factory):
    """A checkpoint of each kind and family, and the directory it was converted to."""
    directory = tmp_path_factory.mktemp(f"{request.param}-{kind}")
    checkpoint = write_checkpoint(directory / "original", request.param, kind)
    lines = []
    convert(str(checkpoint.directory), str(directory / "zoo"), kind=request.param, report=lines.append)
    return checkpoint, directory / "zoo", lines


def served(directory, texts):
    """The vectors of the zoo in float64: of one padded batch, and of each text alone."""
    model = load_published(directory, dtype=torch.float64)
    tokenizer = model.tokenizer
    with torch.no_grad():
        padded = model(**tokenizer(texts, truncation=True, padding=True, return_tensors="pt")).pooler_output
        alone = [model(**tokenizer([text], truncation=True, return_tensors="pt")).pooler_output for text in texts]
    return padded, torch.cat(alone)


def test_the_vectors_are_those_of_the_authors_evaluation(converted):
    checkpoint, directory, _ = converted
    texts = [*TEXTS, "the small cat sees the old dog and the bird"]
    expected = authors_vectors(checkpoint, texts)
    assert expected.std(0).mean() > 1e-2, "the texts have different vectors"
    for vectors in served(directory, texts):
        torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=0)


def test_every_tensor_of_the_file_is_accounted_for(converted):
    checkpoint, directory, lines = converted
    receipt = read_json(directory / "conversion.json")
    assert receipt["kept"].keys() | receipt["dropped"].keys() == checkpoint.state.keys()
    assert not receipt["kept"].keys() & receipt["dropped"].keys()
    assert receipt["file"] == "pytorch_model.bin" and receipt["as"] == checkpoint.kind
    assert f"kept      {len(receipt['kept'])} tensors" in lines


def test_the_repository_is_complete(converted):
    checkpoint, directory, _ = converted
    assert len(verify_repository(str(directory))) == 3
    assert audit(directory) == []
    card = ModelCard.load(directory / "README.md")
    assert card.data.license == (kinds()[checkpoint.kind].license or "unknown")
    assert kinds()[checkpoint.kind].license_note.strip() in card.text
    config = read_json(directory / "config.json")
    assert not {"gradient_checkpointing", "prefix_len"} & config.get("backbone_config", config).keys()
    assert ("backbone_config" in config) == (checkpoint.kind in ("diffaug", "promptbert-sup"))


def test_both_servings_of_supervised_promptbert(kind, tmp_path):
    checkpoint = write_checkpoint(tmp_path / "original", "promptbert-sup", kind)
    convert(str(checkpoint.directory), str(tmp_path / "zoo"), kind="promptbert-sup", serving="transfer", report=str)
    expected = authors_vectors(checkpoint, TEXTS, serving="transfer")
    for vectors in served(tmp_path / "zoo", TEXTS):
        torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=0)


def test_an_unconverted_supervised_checkpoint_keeps_its_mlp_and_not_the_base_models_pooler(kind, tmp_path):
    """The authors' script renames `mlp` to `pooler`. Before it has run, `bert.pooler` is BERT's own."""
    checkpoint = write_checkpoint(tmp_path / "original", "simcse-sup", kind)
    expected = authors_vectors(checkpoint, TEXTS)
    state = {f"{kind}.{name}": tensor for name, tensor in checkpoint.state.items() if not name.startswith("pooler.")}
    state |= {name.replace("pooler", "mlp"): t for name, t in checkpoint.state.items() if name.startswith("pooler.")}
    state |= {f"{kind}.pooler.dense.weight": torch.ones(32, 32), f"{kind}.pooler.dense.bias": torch.ones(32)}
    torch.save(state, checkpoint.weights)
    convert(str(checkpoint.directory), str(tmp_path / "zoo"), kind="simcse-sup", report=str)
    torch.testing.assert_close(served(tmp_path / "zoo", TEXTS)[0], expected, atol=1e-6, rtol=0)


MEASURE = """
import sys
from csezoo.training.converting.convert import convert
from csezoo.training.environment import peak_rss_bytes

before = peak_rss_bytes()
convert(sys.argv[1], sys.argv[2], kind="diffcse", report=str)
print((peak_rss_bytes() - before) / 2**20)
"""


@pytest.mark.slow
def test_a_file_three_times_the_encoders_size_needs_no_more_memory_than_the_encoder(tmp_path):
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 8}
    checkpoint = write_checkpoint(tmp_path / "original", "diffcse", "bert", **sizes)
    encoder = sum(tensor.nbytes for name, tensor in checkpoint.state.items() if name.startswith("bert.")) / 2**20
    checkpoint.state |= {f"generator.{name}": t for name, t in checkpoint.encoder.float().state_dict().items()}
    checkpoint.save()
    assert checkpoint.weights.stat().st_size / 2**20 > 3 * encoder > 900
    command = [sys.executable, "-c", MEASURE, str(checkpoint.directory), str(tmp_path / "zoo")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown = float(done.stdout.splitlines()[-1])  # before it, DeepSpeed may print a line
    assert grown < encoder + 100, "the encoder, and what reading the tokenizer and the code takes"


def test_each_released_checkpoint_has_a_kind_and_scores_that_add_up():
    assert len(released()) == 18
    for name, entry in released().items():
        assert entry.kind in kinds() and entry.scores, name
    for kind in kinds().values():
        assert not kind.kept.keys() & kind.dropped.keys()


def test_the_help_lists_the_kinds(capsys):
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ", ".join(kinds()) in re.sub(r"- (?=\w)", "-", text)
