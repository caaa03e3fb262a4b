"""Save a pre-trained model that the Hub has as a pickle alone as safetensors, for `base_model` and `generator`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from ..environment import quiet_transformers, versions
from ..errors import UserError, library_errors
from ..files import empty_target, new_directory, write_json
from ..loading.sizes import refuse_oversized
from .convert import RECEIPT
from .source import Source, find_source, read_backbone_config, read_tokenizer, read_weights
from .tensors import listed, refuse_equal_names, refuse_other_positions

KIND = "base"
# Layer norms had these names before BERT came to PyTorch.
OLD_NAMES = {"gamma": "weight", "beta": "bias"}


def convert_base(model: str, to: str, *, revision: str | None = None, report: Callable[[str], None] = print) -> None:
    """Write a pre-trained BERT or RoBERTa with its masked-LM head as a directory that transformers loads.

    Args:
        model: a directory or Hub id with `config.json`, a tokenizer and `pytorch_model.bin` or `model.safetensors`.

    Raises:
        UserError: a file is missing or not harmless, the encoder or the masked-LM head lacks a tensor, or two tensors
            would get one name.

    Example:
        `convert_base("google/bert_uncased_L-2_H-128_A-2", "bert-tiny")`
    """
    quiet_transformers()
    target = empty_target(to)
    source = find_source(model, revision, modules=False, authors_pickle=False)
    report(f"read      {source}")
    loaded, dropped = _load(source)
    tokenizer = read_tokenizer(source, loaded.config)
    with new_directory(target) as partial:
        loaded.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        receipt = {"as": KIND, **source.receipt(), "dropped": dropped, "notes": source.notes, "versions": versions()}
        write_json(partial / RECEIPT, receipt)
    for note in source.notes:
        report(f"note      {note}")
    if dropped:
        report(f"dropped   {listed(dropped)}: neither the encoder nor its masked-LM head has it")
    report(f"written   {to}")


def _load(source: Source) -> tuple[PreTrainedModel, list[str]]:
    """Return the masked language model of a file, and the names of the tensors that it does not need."""
    config, _ = read_backbone_config(source)
    read = read_weights(source.weights)
    new_names = {name: _new_name(name) for name in read}
    refuse_equal_names(new_names)
    tensors = {new_names[name]: tensor for name, tensor in read.items()}
    with library_errors(f"{source.name}: its weights do not fit its config.json ({{error}})"):
        refuse_oversized(source.name, config.to_dict(), lambda: AutoModelForMaskedLM.from_config(config))
        model = AutoModelForMaskedLM.from_config(config)
        missing, dropped = model.load_state_dict(tensors, strict=False)
    refuse_other_positions(tensors, dropped)
    state = model.state_dict()
    # Tied tensors share their memory, and a file has only one of them.
    filled = {state[name].data_ptr() for name in tensors if name in state}
    if lacking := [name for name in missing if state[name].data_ptr() not in filled]:
        raise UserError(f"{source.name} lacks {listed(lacking)}, so it is not a complete masked language model")
    if other := [name for name in tensors if name in state and not torch.equal(state[name], tensors[name])]:
        raise UserError(f"{source.name}: {listed(other)} differs from the tensor that transformers ties it to")
    return model, dropped


def _new_name(name: str) -> str:
    """Return the name that transformers has for a tensor today.

    Example:
        >>> _new_name("bert.embeddings.LayerNorm.gamma")
        'bert.embeddings.LayerNorm.weight'
    """
    stem, _, last = name.rpartition(".")
    return f"{stem}.{OLD_NAMES[last]}" if last in OLD_NAMES else name
