"""Convert a checkpoint of the authors' code into a repository of the zoo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, PretrainedConfig, PreTrainedTokenizerBase

from csezoo.modeling import METHODS, SentenceEncoderConfig
from csezoo.modeling.contrastive.backbones import longest_input
from csezoo.modeling.contrastive.masked_language_modeling import MaskedLMTransform

from ..cards.released_card import released_card
from ..environment import quiet_transformers, versions
from ..errors import UserError, library_errors
from ..files import empty_target, new_directory, write_json
from ..loading.masked_lm import load_masked_lm_head
from ..loading.sizes import refuse_oversized
from ..loading.templates import serving_tokenizer, template_token_ids
from ..publishing.fingerprints import add_checksums
from ..recipes.released import Kind, Released, kinds, released
from .prefixes import key_value_prefixes
from .source import Source, find_source, read_backbone_config, read_tokenizer, read_weights
from .tensors import refuse_other_positions, refuse_other_tensors, sort_tensors

RECEIPT = "conversion.json"


def convert(
    model: str,
    to: str,
    *,
    kind: str | None = None,
    serving: str | None = None,
    revision: str | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Write a complete repository of the zoo from a checkpoint that other code wrote.

    The weights are mapped from their file, and only those of the encoder and of kept heads are read. A pickle is read
    without running anything, see `pickles.read_pickle`.

    Args:
        kind: what wrote the checkpoint, one of `recipes.released.kinds`; not needed for a released checkpoint.
        serving: how it is served, where its authors evaluate it in several ways.

    Raises:
        UserError: a file is missing or not harmless, a tensor is not accounted for, or something does not fit.

    Example:
        `convert("princeton-nlp/sup-simcse-bert-base-uncased", "sup-simcse", report=print)`
    """
    quiet_transformers()
    target = empty_target(to)
    entry = released().get(model)
    name, rules = _kind(model, kind, entry)
    serving, keys = _settings(name, rules, serving)
    keys |= entry.model if entry else {}
    modules, known_pickle = name == "consert", entry is not None
    source = find_source(model, revision, modules=modules, authors_pickle=known_pickle)
    if not modules and (source.encoder / "modules.json").is_file():
        source.notes.append(f"modules.json was not read: the pooling and the layers are those of {name}")
    if entry and entry.seen and source.revision and not source.revision.startswith(entry.seen):
        source.notes.append(f"the rules for it were written for commit {entry.seen}")
    report(f"read      {source}")
    with new_directory(target) as partial:
        receipt = _write(partial, source, rules, keys)
        receipt = {"as": name, "serving": serving, **receipt, "notes": source.notes, "versions": versions()}
        write_json(partial / RECEIPT, receipt)
        add_checksums(partial)
        released_card(source.name, rules, entry, receipt, stated=source.license).save(partial / "README.md")
    for note in source.notes:
        report(f"note      {note}")
    kept, dropped = receipt["kept"], receipt["dropped"]
    report(f"kept      {len(kept)} tensors")
    for why, count in Counter(dropped.values()).items():
        heads = sorted({old.split(".")[0] for old, reason in dropped.items() if reason == why})
        report(f"dropped   {count} {'tensor' if count == 1 else 'tensors'} of {', '.join(heads)}: {why}")
    report(f"written   {to}")


def _kind(model: str, kind: str | None, entry: Released | None) -> tuple[str, Kind]:
    known = kinds()
    if entry and kind not in (None, entry.kind):
        raise UserError(f"--as {kind}: {model} is known as {entry.kind}; leave the option out")
    name = entry.kind if entry else kind
    if name not in known:
        given = f"--as {kind} is not a kind" if kind else f"{model} is not one of the released checkpoints"
        raise UserError(f"{given}; give --as with one of {', '.join(known)}, or base for a pre-trained model")
    return name, known[name]


def _settings(name: str, rules: Kind, serving: str | None) -> tuple[str | None, dict[str, Any]]:
    if serving and serving not in rules.servings:
        ways = ", ".join(rules.servings) or "no such option"
        raise UserError(f"--serving {serving}: {name} has {ways}; give one that it has, or leave the option out")
    serving = serving or next(iter(rules.servings), None)
    return serving, {**rules.model, **(rules.servings[serving] if serving else {})}


def _write(directory: Path, source: Source, rules: Kind, keys: dict[str, Any]) -> dict[str, Any]:
    """Write weights, code, configuration and tokenizer; return what became of every tensor and key."""
    backbone_config, foreign_keys = read_backbone_config(source)
    tokenizer = read_tokenizer(source, backbone_config)
    tensors = read_weights(source.weights)
    kept, dropped = sort_tensors(tensors, rules)
    refuse_other_positions(tensors, dropped)
    transform_from = keys.pop("transform_from", None)
    if source.pooling:
        keys["pooling"] = source.pooling
    if "mlp" in rules.kept:
        layer_norm = any(".LayerNorm." in old for old in kept if kept[old].startswith("projection."))
        keys.setdefault("projection", "mlm_transform" if layer_norm else "tanh")
        if keys["projection"] == "none" or transform_from:
            unused = [old for old in kept if kept[old].startswith("projection.")]
            dropped |= dict.fromkeys(unused, "is not used in this serving")
            kept = {old: new for old, new in kept.items() if old not in unused}
        elif keys["projection"] == "mlm_transform":
            kept = {old: _transform(new) for old, new in kept.items()}
    state = {new: tensors[old].contiguous() for old, new in kept.items()}
    if rules.method == "diffaug":
        prefixes = key_value_prefixes(state, backbone_config)
        keys["prefix_length"] = prefixes.shape[3] // 2
        state = {name: tensor for name, tensor in state.items() if not name.startswith("prefixes.")}
        state["prefixes"] = prefixes
    if transform_from:
        state |= _transform_of(transform_from, backbone_config)
    model_class = METHODS[rules.method][1]
    with library_errors(f"{source.name}: its config.json does not describe an encoder ({{error}})"):
        config, serving = _serving(source, rules, keys, backbone_config, tokenizer)
        refuse_oversized(source.name, config.to_dict(), lambda: model_class(config))
    encoder = model_class(config)
    refuse_other_tensors(state, encoder)
    encoder.load_state_dict(state, assign=True)  # these very tensors, so that nothing is copied
    encoder.eval().tokenizer = serving
    encoder.save_pretrained(directory)
    return {
        **source.receipt(),
        "kept": kept,
        "dropped": dropped,
        "transform_from": transform_from,
        "configuration": keys,
        "dropped_configuration": foreign_keys,
    }


def _transform(name: str) -> str:
    """Return the name of a tensor where the projection is a masked-LM transform."""
    if not name.startswith("projection."):
        return name
    return name.replace("projection.", "transform.").replace("LayerNorm", "layer_norm")


def _transform_of(base_model: str, config: PretrainedConfig) -> Mapping[str, torch.Tensor]:
    """Return the masked-LM transform of a base model, which must fit the encoder."""
    transform = MaskedLMTransform(config.hidden_size, config.layer_norm_eps)
    try:
        load_masked_lm_head("--serving", transform, config, base_model, "main")
    except RuntimeError:  # another width
        raise UserError(f"--serving: the masked-LM transform of {base_model} does not fit this encoder") from None
    return {f"transform.{name}": tensor for name, tensor in transform.state_dict().items()}


def _serving(
    source: Source,
    rules: Kind,
    keys: dict[str, Any],
    backbone_config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[SentenceEncoderConfig, PreTrainedTokenizerBase]:
    """Return the configuration of the zoo and the serving tokenizer."""
    template = rules.prompts.get(backbone_config.model_type)
    token_ids = template_token_ids(tokenizer, template)
    config = METHODS[rules.method][0](
        **keys,
        prompts=[template] if template else None,
        backbone_config=backbone_config,
        prompt_token_ids=[token_ids] if template else None,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=sorted(tokenizer.all_special_ids),
    )
    with torch.device("meta"):  # without weights
        longest = longest_input(AutoModel.from_config(backbone_config)) - config.prefix_positions
    serving = serving_tokenizer(
        tokenizer,
        token_ids,
        max_length=min(longest, source.max_length or longest),
        leading_space=template is not None,
        full_stop=config.full_stop,
    )
    return config, serving
