"""Checkpoints in the layouts of the authors' releases, and their vectors by the authors' evaluation, written anew.

Nothing here uses the code that is tested: the encoders are those of transformers, the texts are tokenised as one
string with their template, and every step after the encoder is spelled out.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import BertModel, DynamicCache, RobertaModel

from csezoo.modeling.serving.encoder_layers_csezoo import cache_argument
from csezoo.training.files import write_json
from tests.conftest import tiny_config, tiny_tokenizer

TEMPLATES = {"bert": ('This sentence of "', '" means[MASK].'), "roberta": ("This sentence : ' ", " ' means<mask>.")}
TEXTS = ["the small cat sees the house .", "the dog", "the old horse likes!", "the bird wants the tree?", "the river'"]
ENCODERS = {"bert": BertModel, "roberta": RobertaModel}
KINDS = ("simcse-unsup", "simcse-sup", "diffcse", "promptbert-unsup", "promptbert-sup", "diffaug", "consert")


@dataclass
class Checkpoint:
    """A released checkpoint: its directory, its tensors by the authors' names, its raw encoder in float64."""

    kind: str
    family: str
    directory: Path
    state: dict[str, torch.Tensor]
    encoder: torch.nn.Module

    @property
    def weights(self) -> Path:
        return next(self.directory.rglob("pytorch_model.bin"))

    def save(self) -> None:
        torch.save(self.state, self.weights)


def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> dict[str, torch.Tensor]:
    tensors = {f"{name}.weight": torch.randn(outputs, inputs) / inputs**0.5}
    return tensors | ({f"{name}.bias": torch.randn(outputs) / 4} if bias else {})


def norm(name: str, size: int) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": 1 + torch.randn(size) / 4, f"{name}.bias": torch.randn(size) / 4}


def heads(kind: str, family: str, encoder: dict[str, torch.Tensor], size: int, layers: int) -> dict[str, torch.Tensor]:
    """What a file has beside the encoder, by the authors' names."""
    own = f"{family}.pooler.dense"
    if kind.startswith("simcse"):
        return linear("pooler.dense", size, size)
    if kind == "promptbert-unsup":
        return linear(own, size, size) | linear("mlp.dense", size, size)
    if kind == "promptbert-sup":
        return linear("pooler.dense", size, size) | (norm("pooler.LayerNorm", size) if family == "bert" else {})
    if kind == "consert":
        return linear("pooler.dense", size, size)
    if kind == "diffaug":
        trained = linear("mlp.dense", size, size) | linear("sup_classifier", 2, 3 * size)
        prefixes = {"prefix_encoder.embedding.weight": torch.randn(16, size)}
        prefixes |= linear("prefix_encoder.trans1.0", size, size)
        prefixes |= linear("prefix_encoder.trans1.2", 2 * layers * size, size)
        return linear(own, size, size) | trained | prefixes
    vocabulary = encoder["embeddings.word_embeddings.weight"]
    if family == "bert":
        head = linear("lm_head.transform.dense", size, size) | norm("lm_head.transform.LayerNorm", size)
        names = "generator.distilbert.embeddings.word_embeddings.weight", "generator.vocab_projector.weight"
    else:
        head = linear("lm_head.dense", size, size) | norm("lm_head.layer_norm", size)
        names = "generator.roberta.embeddings.word_embeddings.weight", "generator.lm_head.decoder.weight"
    generator = dict.fromkeys(names, vocabulary.clone())  # tied
    head |= {"lm_head.bias": torch.zeros(len(vocabulary))} | linear("lm_head.decoder", len(vocabulary), size)
    discriminator = {f"discriminator.{name}": tensor.clone() for name, tensor in encoder.items()}
    mlp = linear("mlp.net.0", 2 * size, size, bias=False) | norm("mlp.net.1", 2 * size)
    mlp |= linear("mlp.net.3", size, 2 * size, bias=False)
    for name, width in (("mlp.net.1", 2 * size), ("mlp.net.4", size)):
        mlp |= {f"{name}.running_mean": torch.randn(width), f"{name}.running_var": torch.ones(width)}
        mlp[f"{name}.num_batches_tracked"] = torch.tensor(7)
    return head | discriminator | linear("electra_head", 2, size) | mlp | generator


def write_vocabulary(directory: Path, family: str, settings: bool) -> None:
    tokenizer = tiny_tokenizer(family)
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    if family == "bert":
        (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    else:
        model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        write_json(directory / "vocab.json", tokenizer.get_vocab())
        merges = "".join(f"{' '.join(merge)}\n" for merge in model["merges"])
        (directory / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    if settings:
        values = {"do_lower_case": True} if family == "bert" else {"add_prefix_space": False}
        values |= {"model_max_length": 512, "name_or_path": "bert-base-uncased"}
        write_json(directory / "tokenizer_config.json", values)


def write_checkpoint(directory: Path, kind: str, family: str, **sizes: int) -> Checkpoint:
    """Write a checkpoint as its authors did, with random weights, into a new directory."""
    torch.manual_seed(len(kind))
    place = directory / "0_Transformer" if kind == "consert" else directory
    place.mkdir(parents=True)
    sizes = {"max_position_embeddings": 130, "vocab_size": len(tiny_tokenizer(family)), **sizes}
    config = tiny_config(family, **sizes)
    raw = ENCODERS[family](config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in raw.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    encoder = {name: tensor.clone() for name, tensor in raw.state_dict().items()}
    positions = torch.arange(config.max_position_embeddings)[None]
    named = OrderedDict({"embeddings.position_ids": positions, **encoder})
    prefix = f"{family}." if kind in ("diffcse", "promptbert-unsup", "diffaug") else ""
    state = OrderedDict((prefix + name, tensor) for name, tensor in named.items())
    state.update(heads(kind, family, encoder, config.hidden_size, config.num_hidden_layers))
    state._metadata = OrderedDict({"": {"version": 1}})  # of torch, in every file that it wrote
    torch.save(state, place / "pytorch_model.bin")
    written = {key: value for key, value in config.to_dict().items() if value is not None}
    written |= {"_name_or_path": f"result/{kind}", "architectures": [f"{family.title()}ForCL"]}
    written |= {"gradient_checkpointing": False, "position_embedding_type": "absolute", "use_cache": True}
    written |= {"transformers_version": "4.2.1"} | ({"prefix_len": 16} if kind == "diffaug" else {})
    if kind == "consert":
        written["output_hidden_states"] = True
        write_sentence_transformers(directory, config.hidden_size)
    write_json(place / "config.json", written)
    write_vocabulary(place, family, settings=kind not in ("promptbert-unsup", "promptbert-sup"))
    return Checkpoint(kind, family, directory, state, raw.double())


def write_sentence_transformers(directory: Path, size: int) -> None:
    """The files of ConSERT's copy of sentence-transformers 0.3.9."""
    modules = [("0", "0_Transformer", "Transformer"), ("1", "1_Pooling", "Pooling")]
    listed = [
        {"idx": int(name), "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for name, path, kind in modules
    ]
    modes = dict.fromkeys(("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"), False)
    pooling = {f"pooling_mode_{mode}": value for mode, value in {**modes, "mean_last_2_tokens": True}.items()}
    (directory / "1_Pooling").mkdir()
    for name, content in {
        "modules.json": listed,
        "config.json": {"__version__": "0.3.9"},
        "1_Pooling/config.json": {"word_embedding_dimension": size, **pooling},
        "0_Transformer/sentence_bert_config.json": {"max_seq_length": 10},
    }.items():
        write_json(directory / name, content)


@torch.no_grad()
def authors_vectors(checkpoint: Checkpoint, texts: list[str], serving: str = "sts") -> torch.Tensor:
    """The float64 vectors of texts, as one padded batch, by the steps of the authors' evaluation."""
    kind, family, encoder = checkpoint.kind, checkpoint.family, checkpoint.encoder
    state = {name: tensor.double() for name, tensor in checkpoint.state.items() if tensor.is_floating_point()}
    tokenizer = tiny_tokenizer(family)
    prompted = kind.startswith("promptbert") or kind == "diffaug"
    if prompted:
        before, after = TEMPLATES[family]
        if kind != "diffaug":
            texts = [text + "." if text and text[-1] not in ".?\"'" else text for text in texts]
        texts = [before + text + after for text in texts]
    # Without truncation; ConSERT's limit is max_seq_length + 3.
    limit = {"truncation": True, "max_length": 13} if kind == "consert" else {}
    batch = tokenizer(texts, padding=True, return_tensors="pt", **limit)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    if kind == "diffaug":
        hidden = with_prefixes(encoder, state, ids, mask).last_hidden_state
    else:
        output = encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        hidden = output.last_hidden_state
    if kind == "consert":
        weights = mask[:, :, None].double()
        means = [(layer * weights).sum(1) / weights.sum(1) for layer in output.hidden_states[-2:]]
        return (means[0] + means[1]) / 2
    vectors = hidden[ids == tokenizer.mask_token_id] if prompted else hidden[:, 0]
    if kind == "simcse-sup":
        return torch.tanh(vectors @ state["pooler.dense.weight"].T + state["pooler.dense.bias"])
    if kind != "promptbert-sup" or serving == "transfer":
        return vectors
    biases, length = template_biases(encoder, tokenizer, *TEMPLATES[family], longest=ids.shape[1])
    bias = biases[mask.sum(1) - length]
    dense = state["pooler.dense.weight"].T, state["pooler.dense.bias"]
    if "pooler.LayerNorm.weight" not in state:
        return torch.tanh((vectors - bias) @ dense[0] + dense[1])

    def transform(x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.gelu(x @ dense[0] + dense[1])
        weight, offset = state["pooler.LayerNorm.weight"], state["pooler.LayerNorm.bias"]
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, offset, eps=1e-12)

    return transform(vectors) - transform(bias)


def template_biases(encoder, tokenizer, before: str, after: str, longest: int) -> tuple[torch.Tensor, int]:
    """The mask's vectors for sentences of 0, 1, … tokens, and the number of the template's tokens."""
    start = len(tokenizer(before.strip()).input_ids) - 1
    ids = tokenizer(before.rstrip() + " " + after.lstrip(), return_tensors="pt").input_ids.repeat(longest, 1)
    positions = torch.arange(ids.shape[1]).repeat(longest, 1)
    positions[:, start:] += torch.arange(longest)[:, None]
    # Rows whose positions are beyond the encoder's are for sentences that do not fit either.
    fits = positions[:, -1] < encoder.config.max_position_embeddings
    hidden = encoder(input_ids=ids[fits], position_ids=positions[fits]).last_hidden_state
    return hidden[ids[fits] == tokenizer.mask_token_id], ids.shape[1]


def with_prefixes(encoder, state: dict[str, torch.Tensor], ids: torch.Tensor, mask: torch.Tensor):
    """The encoder with the keys and values of all 16 slots, which every token attends to."""
    name = "prefix_encoder.trans1"
    inner = state["prefix_encoder.embedding.weight"] @ state[f"{name}.0.weight"].T + state[f"{name}.0.bias"]
    flat = torch.tanh(inner) @ state[f"{name}.2.weight"].T + state[f"{name}.2.bias"]
    config = encoder.config
    heads = config.num_attention_heads
    slots = flat.view(16, config.num_hidden_layers, 2, heads, config.hidden_size // heads)
    cache = DynamicCache()
    for layer in range(config.num_hidden_layers):
        keys, values = (slots[:, layer, part].transpose(0, 1)[None].expand(len(ids), -1, -1, -1) for part in (0, 1))
        cache.update(keys, values, layer)
    if config.model_type == "bert":
        positions = torch.arange(16, 16 + ids.shape[1])[None].expand_as(ids)
    else:
        positions = (mask.cumsum(1) + 16) * mask + config.pad_token_id
    attended = torch.cat([mask.new_ones(len(ids), 16), mask], dim=1)
    past = {cache_argument(encoder): cache}
    return encoder(input_ids=ids, attention_mask=attended, position_ids=positions, **past)
