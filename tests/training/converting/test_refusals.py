"""What `csezoo convert` refuses, each in one line: pickles that are not harmless, and files that do not fit."""

import io
import pickle
import random
import shutil
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from csezoo.training.cli.parser import main
from csezoo.training.converting import pickles
from csezoo.training.converting.convert import convert
from csezoo.training.converting.pickles import read_pickle
from csezoo.training.converting.source import find_source
from csezoo.training.errors import UserError
from csezoo.training.files import write_json
from tests.repositories import edit_json
from tests.training.converting.authors import write_checkpoint
from tests.training.pickles import Trap


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("original") / "model", "simcse-sup", "bert")


@pytest.fixture
def checkpoint(original, tmp_path):
    """A copy of a supervised SimCSE that a test may change."""
    shutil.copytree(original.directory, tmp_path / "model")
    return type(original)(original.kind, original.family, tmp_path / "model", dict(original.state), original.encoder)


def refused(checkpoint, match, kind="simcse-sup", **options):
    target = checkpoint.directory.parent / "zoo"
    with pytest.raises(UserError, match=match) as error:
        convert(str(checkpoint.directory), str(target), kind=kind, report=str, **options)
    assert "\n" not in str(error.value)
    assert not target.exists(), "nothing is left of a conversion that failed"


def repacked(file, change):
    """Write an archive of torch.save again, with `change(name, content)` for the content of each file."""
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, change(name, content))


def test_a_pickle_with_another_import_is_not_read(checkpoint, tmp_path):
    torch.save({"weight": Trap(tmp_path / "mark")}, checkpoint.weights)
    refused(
        checkpoint, "imports __builtin__.open, which tensors in float32 do not need; it was not read|imports io.open"
    )
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_an_import_is_found_however_it_is_written(checkpoint, tmp_path, protocol):
    trap = pickle.dumps({"weight": Trap(tmp_path / "mark")}, protocol)
    repacked(checkpoint.weights, lambda name, content: trap if name.endswith("data.pkl") else content)
    refused(checkpoint, "STACK_GLOBAL" if protocol == 4 else "open")
    assert not (tmp_path / "mark").exists()


def test_an_import_of_torch_that_weights_only_allows_is_refused_too(checkpoint):
    checkpoint.state["pooler.dense.bias"] = checkpoint.state["pooler.dense.bias"].half()
    checkpoint.save()
    refused(checkpoint, "imports torch.HalfStorage")


def test_a_second_pickle_in_the_archive_is_looked_at(checkpoint, tmp_path):
    with zipfile.ZipFile(checkpoint.weights, "a") as archive:
        archive.writestr("other/data.pkl", pickle.dumps(Trap(tmp_path / "mark"), 2))
    refused(checkpoint, "open")


def test_a_damaged_file_is_refused(checkpoint):
    whole = checkpoint.weights.read_bytes()
    for content in (b"", b"\x80\x02}q\x00.", whole[: len(whole) // 2]):
        checkpoint.weights.write_bytes(content)
        refused(checkpoint, "is damaged")
    checkpoint.weights.write_bytes(whole)
    repacked(checkpoint.weights, lambda name, content: content[:40] if name.endswith("data.pkl") else content)
    refused(checkpoint, "is damaged")


@pytest.mark.filterwarnings("ignore")  # of torch and pickletools, about what they cannot read
def test_a_file_with_any_bytes_changed_is_read_or_refused_in_one_line(tmp_path):
    """In both forms of torch.save. Found by changing bytes: errors of eight types."""
    file = tmp_path / "pytorch_model.bin"
    for archive in (True, False):
        torch.save({"a": torch.ones(3, 2), "b": torch.ones(2)}, file, _use_new_zipfile_serialization=archive)
        whole = file.read_bytes()
        for seed in range(300):
            content, chance = bytearray(whole), random.Random(seed)
            for _ in range(chance.choice([1, 2, 4])):
                content[chance.randrange(len(content))] = chance.randrange(256)
            file.write_bytes(content)
            try:
                read_pickle(file)
            except UserError as error:
                assert str(error).startswith("pytorch_model.bin ") and "\n" not in str(error)


@pytest.mark.parametrize("length", [10**11, 2**63 - 1])
def test_a_pickle_with_a_text_longer_than_any_file_is_refused(tmp_path, length):
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"\x8e" + length.to_bytes(8, "little"))
    with pytest.raises(UserError, match=r"is damaged, or not a pickle of tensors that torch.save wrote \(.+\)"):
        read_pickle(file)


def test_a_torch_that_cannot_read_pickles_safely_is_refused(checkpoint, monkeypatch):
    monkeypatch.setattr(pickles, "SAFE_TORCH", "99.0")
    refused(checkpoint, "reading it safely needs torch 99.0, this is")


def test_more_than_tensors_is_refused(checkpoint):
    torch.save({"model": checkpoint.state}, checkpoint.weights)
    refused(checkpoint, "contains more than tensors by name")


def test_a_pickle_is_mapped_and_not_read_into_memory(checkpoint):
    buffer = io.BytesIO(checkpoint.weights.read_bytes())
    tensor = read_pickle(checkpoint.weights)["pooler.dense.weight"]
    assert torch.equal(tensor, torch.load(buffer, weights_only=True)["pooler.dense.weight"])
    maps = open("/proc/self/maps").read()
    assert str(checkpoint.weights) in maps


def test_tensors_that_do_not_fit_are_named(checkpoint):
    state, query = checkpoint.state, "encoder.layer.1.attention.self.query.weight"
    lost = state.pop(query)
    checkpoint.save()
    refused(checkpoint, f"lacks backbone.{query}")
    state[query] = lost[:-1]
    checkpoint.save()
    refused(checkpoint, rf"{query} has the shape \(31, 32\), its configuration needs \(32, 32\)")
    state[query] = lost
    state["p_mbv"] = torch.ones(3)
    checkpoint.save()
    refused(checkpoint, r"no rule of this kind of checkpoint names p_mbv; is it another kind \(--as\)")
    del state["p_mbv"]
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, checkpoint.weights)
    refused(checkpoint, "every name begins with `module.`, as DataParallel saves them; remove it")
    state["encoder.layer.3.output.dense.bias"] = torch.ones(32)
    checkpoint.save()
    refused(checkpoint, "has backbone.encoder.layer.3.output.dense.bias, which its configuration does not need")


def test_two_tensors_that_would_get_one_name_are_refused(checkpoint):
    parts = {f"bert.{name.replace('pooler', 'mlp')}": tensor for name, tensor in checkpoint.state.items()}
    checkpoint.state.clear()
    checkpoint.state.update(parts, **{"mlp.dense.weight": torch.ones(32, 32)})
    checkpoint.save()
    both = "bert.mlp.dense.weight and mlp.dense.weight would both become projection.dense.weight"
    refused(checkpoint, both)


def test_tied_tensors_are_refused(checkpoint):
    first, second = (f"encoder.layer.{layer}.output.dense.weight" for layer in (0, 1))
    checkpoint.state[second] = checkpoint.state[first]
    checkpoint.save()
    refused(checkpoint, f"backbone.{first} and backbone.{second} are tied")


def test_a_head_that_is_needed_and_not_there_is_named(checkpoint):
    for part in ("weight", "bias"):
        del checkpoint.state[f"pooler.dense.{part}"]
    checkpoint.save()
    refused(checkpoint, "lacks projection.dense.weight, projection.dense.bias")


def test_positions_that_do_not_count_up_are_refused(checkpoint):
    checkpoint.state["embeddings.position_ids"] = torch.arange(130).flip(0)[None]
    checkpoint.save()
    refused(checkpoint, "position_ids does not count 0, 1, 2")


def test_a_prefix_encoder_that_does_not_fit_is_refused(tmp_path):
    diffaug = write_checkpoint(tmp_path / "model", "diffaug", "bert")
    name = "prefix_encoder.trans1.2.weight"
    whole = diffaug.state[name]
    diffaug.state[name] = whole[:-32]
    diffaug.save()
    refused(diffaug, "the prefix encoder's shapes .* do not fit the encoder", kind="diffaug")
    del diffaug.state[name]
    diffaug.save()
    refused(diffaug, "the prefix encoder has other tensors than expected: prefixes.trans1.2.weight", kind="diffaug")
    diffaug.state |= {name: whole, "prefix_encoder.embedding.weight": torch.ones(15, 32)}
    diffaug.save()
    refused(diffaug, "does not fit two views", kind="diffaug")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; convert reads bert and roberta"),
        ({"model_type": "simcse"}, "convert reads bert and roberta"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be absolute"),
        ({"hidden_size": "wide"}, "its config.json is not valid"),
        ({"num_attention_heads": 5}, "its config.json does not describe an encoder"),
        ({"hidden_act": "unheard"}, "its config.json does not describe an encoder"),
        ({"vocab_size": 10**12}, "its vocabulary has 30 tokens and its embedding 1,000,000,000,000 rows"),
        ({"intermediate_size": 10**12}, "its configuration needs .* GiB"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(checkpoint, changes, match):
    edit_json(checkpoint.directory / "config.json", **changes)
    refused(checkpoint, match)


def test_a_vocabulary_that_does_not_fit_is_refused(checkpoint):
    with (checkpoint.directory / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("unheard\n")
    refused(checkpoint, "its vocabulary has 31 tokens and its embedding 30 rows")


def test_a_checkpoint_without_a_tokenizer_is_refused(checkpoint):
    (checkpoint.directory / "vocab.txt").unlink()
    refused(checkpoint, "has no tokenizer.json, vocab.txt or vocab.json")


def test_a_vocabulary_alone_lower_cases_only_if_it_has_no_upper_case(checkpoint):
    (checkpoint.directory / "tokenizer_config.json").unlink()
    lines = []
    convert(str(checkpoint.directory), str(checkpoint.directory.parent / "ok"), kind="simcse-sup", report=lines.append)
    assert any("no upper case: texts are lower-cased" in line for line in lines)
    file = checkpoint.directory / "vocab.txt"
    file.write_text(file.read_text(encoding="utf-8").replace("\nhouse\n", "\nHouse\n"), encoding="utf-8")
    refused(checkpoint, "vocab.txt has upper case and nothing says whether the tokenizer lower-cases")


def test_missing_files_are_named(checkpoint):
    checkpoint.weights.unlink()
    refused(checkpoint, "has no pytorch_model.bin; give a directory or Hub id of a checkpoint")
    (checkpoint.directory / "model.safetensors.index.json").write_text("{}")
    refused(checkpoint, "its weights are in several files, join them in one model.safetensors")
    (checkpoint.directory / "model.safetensors.index.json").rename(checkpoint.directory / "modules.json")
    refused(checkpoint, r"it is a directory of sentence-transformers, is it another kind \(--as\)")
    (checkpoint.directory / "modules.json").unlink()
    refused(checkpoint, r"has no modules.json; is it another kind \(--as\)", kind="consert")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"modules.json": [{"path": "", "type": "x.Transformer"}]}, "modules.json has Transformer; expected"),
        ({"1_Pooling/config.json": {"pooling_mode_pad_max_tokens": True}}, "pools by pooling_mode_pad_max_tokens"),
        ({"1_Pooling/config.json": {}}, "pools by nothing; expected one mode of the zoo"),
        ({"modules.json": [{"path": ""}]}, r"modules.json has \{'path': ''\}, which is no module in it"),
        ({"modules.json": [{"type": "x.Transformer"}]}, "which is no module in it"),
        ({"modules.json": [1, 2]}, "modules.json has 1, which is no module in it"),
        ({"0_Transformer/sentence_bert_config.json": {}}, "max_seq_length must be a whole number above 0, got None"),
        ({"0_Transformer/sentence_bert_config.json": {"max_seq_length": None}}, "above 0, got None"),
        ({"0_Transformer/sentence_bert_config.json": {"max_seq_length": "64"}}, "above 0, got '64'"),
    ],
)
def test_other_sentence_transformers_directories_are_refused(tmp_path, changes, match):
    consert = write_checkpoint(tmp_path / "model", "consert", "bert")
    for name, content in changes.items():
        write_json(consert.directory / name, content)
    refused(consert, match, kind="consert")


@pytest.mark.parametrize(
    ("metadata", "stated"),
    [("license: mit", "mit"), ("license: [mit", None), ("tags: a: b", None), ("1: a", None), ("license: 1", None)],
)
def test_a_card_that_cannot_be_read_states_no_license(checkpoint, metadata, stated):
    (checkpoint.directory / "README.md").write_text(f"---\n{metadata}\n---\n", encoding="utf-8")
    source = find_source(str(checkpoint.directory), None, modules=False, authors_pickle=True)
    assert source.license == stated


def test_the_kind_is_asked_for_and_checked(checkpoint):
    refused(
        checkpoint, "is not one of the released checkpoints; give --as with one of simcse-unsup, simcse-sup", kind=None
    )
    refused(checkpoint, "--as simcse is not a kind; give --as", kind="simcse")
    refused(checkpoint, "--serving transfer: simcse-sup has no such option", serving="transfer")
    with pytest.raises(UserError, match="is known as diffcse; leave the option out"):
        convert("voidism/diffcse-roberta-base-sts", str(checkpoint.directory.parent / "zoo"), kind="simcse-sup")


def test_safetensors_are_preferred_and_the_command_says_so(checkpoint, capsys):
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.state.items()}
    save_file(tensors, checkpoint.directory / "model.safetensors", metadata={"format": "pt"})
    checkpoint.weights.write_bytes(b"never read")
    target = checkpoint.directory.parent / "zoo"
    main(["convert", str(checkpoint.directory), "--to", str(target), "--as", "simcse-sup"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "read      model.safetensors of model"
    assert "note      there is a pytorch_model.bin too, which was not read" in lines
    assert lines[-1] == f"written   {target}"
