"""From the authors' repository on a Hub to a repository of the zoo on the same Hub, by id and revision."""

import pytest
import torch
from transformers import BertForMaskedLM

from csezoo.modeling.contrastive.published import load_published
from csezoo.training.files import read_json
from tests.conftest import tiny_config
from tests.interpreters import run_python
from tests.repositories import local_files
from tests.training.converting.authors import TEXTS, authors_vectors, write_checkpoint

NAME = "princeton-nlp/sup-simcse-bert-base-uncased"


def put(hub, checkpoint, **more):
    """Commit a checkpoint under its released name, and return the commit's id."""
    return hub.commit(NAME, "weights", {**local_files(checkpoint.directory), **more}).id


@pytest.fixture
def convert(hub, tmp_path):
    def run(*options):
        command = ["-m", "csezoo.training.cli", "convert", NAME, "--to", tmp_path / "zoo", *options]
        return run_python("-W", "ignore", *command, **hub.environment(tmp_path / "hf"))

    return run


def test_convert_reads_a_hub_id_at_a_revision(hub, convert, tmp_path):
    checkpoint = write_checkpoint(tmp_path / "original", "simcse-sup", "bert")
    card = b"---\nlicense: bsd-3-clause\n---\n"
    first = put(hub, checkpoint, **{"README.md": card, "flax_model.msgpack": b"not needed"})
    put(hub, write_checkpoint(tmp_path / "other", "simcse-sup", "bert", hidden_size=16))
    done = convert("--revision", first)
    assert done.returncode == 0, done.stderr
    assert f"read      pytorch_model.bin of {NAME} at {first}" in done.stdout
    assert "the rules for it were written for commit 2d82fab" in done.stdout
    assert not [request for request in hub.requests if "msgpack" in request or "/discussions" in request]
    receipt = read_json(tmp_path / "zoo" / "conversion.json")
    assert (receipt["source"], receipt["revision"]) == (NAME, first)
    card = (tmp_path / "zoo" / "README.md").read_text(encoding="utf-8")
    assert f"[{NAME}](https://huggingface.co/{NAME}) at commit `{first}`" in card
    assert "license: bsd-3-clause" in card and "published by its authors, not verified here" in card


@pytest.mark.slow
def test_supervised_promptbert_can_be_served_with_the_base_models_transform(hub, tmp_path):
    """What the authors' script does with the Hub id: the pre-trained transform on the tuned encoder."""
    name, base_name = "royokong/sup-PromptBERT", "google-bert/bert-base-uncased"
    checkpoint = write_checkpoint(tmp_path / "original", "promptbert-sup", "bert")
    torch.manual_seed(1)
    base = BertForMaskedLM(tiny_config("bert"))
    base.save_pretrained(tmp_path / "base")
    for repository, directory in ((name, checkpoint.directory), (base_name, tmp_path / "base")):
        hub.commit(repository, "weights", local_files(directory))
    command = ["-m", "csezoo.training.cli", "convert", name, "--to", tmp_path / "zoo", "--serving", "sts-pretrained"]
    done = run_python("-W", "ignore", *command, **hub.environment(tmp_path / "hf"))
    assert done.returncode == 0, done.stderr
    transform = base.cls.predictions.transform.state_dict()
    checkpoint.state |= {f"pooler.{part}": tensor for part, tensor in transform.items()}
    vectors = torch.from_numpy(load_published(tmp_path / "zoo").encode(TEXTS)).double()
    torch.testing.assert_close(vectors, authors_vectors(checkpoint, TEXTS), atol=1e-5, rtol=0)

    other = write_checkpoint(tmp_path / "other", "promptbert-sup", "roberta")
    hub.commit(name, "another family", local_files(other.directory))
    command[5] = tmp_path / "other-zoo"
    done = run_python("-W", "ignore", *command, **hub.environment(tmp_path / "hf"))
    assert done.returncode == 2
    assert f"the masked-LM transform of {base_name} does not fit this encoder" in done.stderr


def test_a_third_partys_conversion_is_not_read_without_saying_so(hub, convert, tmp_path):
    """A pull request is read only if it is asked for. Then the output, the card and the receipt name it."""
    checkpoint = write_checkpoint(tmp_path / "original", "simcse-sup", "bert")
    put(hub, checkpoint)
    adding = "Adding `safetensors` variant of this model"
    hub.commit(NAME, adding, local_files(checkpoint.directory), pull_request="refs/pr/2")
    done = convert("--revision", "refs/pr/2")
    assert done.returncode == 0, done.stderr
    note = "refs/pr/2 is a pull request: anybody can open one, so the weights may be a third party's"
    assert f"note      {note}" in done.stdout
    assert note[1:] in (tmp_path / "zoo" / "README.md").read_text(encoding="utf-8")
    assert note in read_json(tmp_path / "zoo" / "conversion.json")["notes"]
