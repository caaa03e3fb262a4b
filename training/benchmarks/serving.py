"""Size and time of encoding of every model in the index, on random weights of the same shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoConfig, BertConfig, PretrainedConfig, RobertaConfig

from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel
from csezoo.modeling.methods.diffaug import DiffAugConfig, DiffAugModel
from csezoo.modeling.methods.simcse import SimCSEConfig, SimCSEModel

from ..cards.entries import entries
from ..cards.serving import Shape
from ..environment import progress_bar
from ..errors import library_errors
from ..recipes import file_name

SENTENCES, PIECES, WORDS = 8, 16, 1000
LARGE: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
LARGE["intermediate_size"] = 4096
ROBERTA: dict[str, Any] = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
# The configurations of the base models on the Hub, as far as size and time depend on them.
BASES: dict[str, PretrainedConfig] = {
    "bert-base-uncased": BertConfig(),
    "bert-large-uncased": BertConfig(**LARGE),
    "bert-base-multilingual-cased": BertConfig(vocab_size=119547),
    "bert-base-nli-mean-tokens": BertConfig(),
    "bert-large-nli-mean-tokens": BertConfig(**LARGE),
    "roberta-base": RobertaConfig(**ROBERTA),
    "roberta-large": RobertaConfig(**ROBERTA, **LARGE),
    "all-MiniLM-L6-v2": BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
}


def benchmark_serving(cards: str, bases: Sequence[str] = (), *, repeats: int = 5) -> dict[str, object]:
    """Measure the shapes of all models in the index of the cards.

    A sentence has 16 word pieces and the template of its prompt. Sentences are encoded on one thread in float32, 8 in
    a batch. Their word pieces and the weights are random: neither changes the time. The tokenizer is not timed. Models
    whose layers have the same sizes are timed once. All are timed in turns, so that a busy machine slows down all.
    An adapter is timed beside its base model, as PEFT loads it; merged, it costs what the base model costs.

    Returns:
        `shapes`: for each, `parameters`, `bytes` of the weights, and `cpu_ms_per_sentence`, processor time; the
        `protocol`.
    """
    known = {**BASES, **{file_name(base): _configuration(base) for base in bases}}
    shapes = sorted({entry.shape for entry in entries(Path(cards)) if entry.shape.base in known})
    layers = {shape: _layers(shape, known[shape.base]) for shape in shapes}
    different = {of_layers: shape for shape, of_layers in layers.items()}
    times: dict[tuple, list[float]] = {of_layers: [] for of_layers in different}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with progress_bar(repeats * len(different), "timing") as bar:
            for _ in range(repeats):
                for of_layers, shape in different.items():
                    times[of_layers].append(_milliseconds(shape, known[shape.base]))
                    bar.update()
    finally:
        torch.set_num_threads(threads)
    measured = {
        shape.name: {
            **_size(shape, known[shape.base]),
            "cpu_ms_per_sentence": round(statistics.median(times[layers[shape]]), 3),
        }
        for shape in shapes
    }
    protocol = {"pieces": PIECES, "sentences": SENTENCES, "threads": 1, "repeats": repeats}
    return {"protocol": protocol, "shapes": measured}


def _configuration(base: str) -> PretrainedConfig:
    with library_errors(f"bases: {base} has no configuration that can be read; give the directory of a model"):
        return AutoConfig.from_pretrained(base, trust_remote_code=False)


def serving_model(shape: Shape, base: PretrainedConfig) -> SentenceEncoderModel:
    """Return a model of a shape, with random weights."""
    settings: dict[str, Any] = {"backbone_config": base, "whitening_size": shape.whitening or None}
    if shape.projection != "none":
        settings |= {"projection": shape.projection, "projection_at_test": True}
    if shape.prefix:
        return DiffAugModel(DiffAugConfig(prefix_length=shape.prefix, **settings)).eval()
    model = SimCSEModel(SimCSEConfig(**settings)).eval()
    if shape.adapter:
        inject_adapter_in_model(LoraConfig(r=shape.adapter, target_modules=["query", "value"]), model.backbone)
    return model


def _size(shape: Shape, base: PretrainedConfig) -> dict[str, int]:
    with torch.device("meta"):
        tensors = serving_model(shape, base).state_dict().values()
    return {"parameters": sum(each.numel() for each in tensors), "bytes": sum(each.nbytes for each in tensors)}


def _layers(shape: Shape, base: PretrainedConfig) -> tuple:
    """Return what the time of encoding depends on. A larger vocabulary takes memory, but no time."""
    sizes = (base.hidden_size, base.num_hidden_layers, base.num_attention_heads, base.intermediate_size)
    return *sizes, *shape[1:]


@torch.no_grad()
def _milliseconds(shape: Shape, base: PretrainedConfig) -> float:
    few = type(base).from_dict({**base.to_dict(), "vocab_size": WORDS})
    model = serving_model(shape, few)
    ids = torch.randint(10, WORDS, (SENTENCES, PIECES + shape.template))
    for _ in range(2):  # the first one warms up
        started = time.process_time()
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return 1000 * (time.process_time() - started) / SENTENCES
