"""`csezoo convert --as base` makes safetensors of a pre-trained model that is a pickle."""

import pickle

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from csezoo.training.cli.parser import main
from csezoo.training.converting.base_models import convert_base
from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from tests.conftest import tiny_config, tiny_tokenizer
from tests.training.pickles import Trap

OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def old_name(name):
    return next((name.removesuffix(new) + old for new, old in OLD.items() if name.endswith(new)), name)


@pytest.fixture(params=["bert", "roberta"])
def original(request, tmp_path):
    """A masked language model, and its directory as the first releases had it: a pickle with more than it needs."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer(request.param)
    config = tiny_config(request.param)
    config.vocab_size = len(tokenizer)
    model = AutoModelForMaskedLM.from_config(config).eval()
    directory = tmp_path / "original"
    config.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model, directory


def write(model, directory, changes=None, **options):
    state = {old_name(name): tensor for name, tensor in model.state_dict().items()}
    family = model.config.model_type
    state[f"{family}.embeddings.position_ids"] = torch.arange(model.config.max_position_embeddings)[None]
    state["cls.seq_relationship.weight"] = torch.zeros(2, model.config.hidden_size)
    torch.save({**state, **(changes or {})}, directory / "pytorch_model.bin", **options)


@pytest.mark.parametrize("new_format", [True, False], ids=["archive", "pickles in a row"])
def test_a_pickle_becomes_the_same_masked_language_model(original, tmp_path, capsys, new_format):
    model, directory = original
    write(model, directory, _use_new_zipfile_serialization=new_format)
    main(["convert", str(directory), "--as", "base", "--to", str(tmp_path / "base")])
    *_, dropped, written = capsys.readouterr().out.splitlines()
    assert "cls.seq_relationship.weight" in dropped and "position_ids" in dropped
    assert written == f"written   {tmp_path / 'base'}"
    converted = AutoModelForMaskedLM.from_pretrained(tmp_path / "base", use_safetensors=True).eval()
    inputs = AutoTokenizer.from_pretrained(tmp_path / "base")("the small cat sees the house .", return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(converted(**inputs).logits, model(**inputs).logits, rtol=0, atol=0)
    receipt = read_json(tmp_path / "base" / "conversion.json")
    assert receipt["file"] == "pytorch_model.bin" and len(receipt["sha256"]) == 64


def refused(directory, match):
    with pytest.raises(UserError, match=match) as error:
        convert_base(str(directory), str(directory.parent / "base"), report=str)
    assert "\n" not in str(error.value)
    assert not (directory.parent / "base").exists()


def test_a_model_without_its_masked_lm_head_is_refused(original):
    model, directory = original
    torch.save(model.base_model.state_dict(), directory / "pytorch_model.bin")
    refused(directory, "lacks .*, so it is not a complete masked language model")


def test_an_old_name_beside_the_new_one_is_refused(original):
    model, directory = original
    new = f"{model.config.model_type}.embeddings.LayerNorm.weight"
    write(model, directory, {new: torch.zeros(model.config.hidden_size)})
    old = f"{model.config.model_type}.embeddings.LayerNorm.gamma"
    refused(directory, f"{old} and {new} would both become {new}")


def test_a_tied_tensor_with_other_numbers_is_refused(original):
    model, directory = original
    decoder = {"bert": "cls.predictions.decoder.weight", "roberta": "lm_head.decoder.weight"}[model.config.model_type]
    write(model, directory, {decoder: torch.zeros_like(model.get_input_embeddings().weight)})
    refused(directory, "differs from the tensor that transformers ties it to")


def test_a_tensor_of_another_shape_is_refused(original):
    model, directory = original
    family = model.config.model_type
    write(model, directory, {f"{family}.embeddings.word_embeddings.weight": torch.zeros(3, 3)})
    refused(directory, "its weights do not fit its config.json")


@pytest.mark.parametrize("before", range(5))
def test_every_pickle_of_the_old_format_is_looked_at(original, tmp_path, before):
    model, directory = original
    pickles = [pickle.dumps(0, 2)] * 5
    pickles[before] = pickle.dumps(Trap(tmp_path / "mark"), 2)
    (directory / "pytorch_model.bin").write_bytes(b"".join(pickles))
    refused(directory, "is a pickle that imports .*open, which tensors in float32 do not need")
    assert not (tmp_path / "mark").exists()
