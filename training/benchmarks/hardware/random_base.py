"""An encoder of a given size with random weights, its tokenizer and sentences, for benchmarks that need no data."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from ...quickstart.base import SPECIAL_TOKENS

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 400},
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "vocab_size": 30522},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 30522},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 30522},
}
CHARACTERS = [*"abcdefghijklmnopqrstuvwxyz", *".,:;!?'()-", '"']


def write_base(directory: Path, size: str, layers: int | None = None) -> None:
    """Write a BERT with random weights, and a tokenizer that reads each word of `sentences` as one piece.

    Args:
        size: one of `SIZES`.
        layers: its layers, if they are not those of its size.
    """
    sizes = SIZES[size] | ({"num_hidden_layers": layers} if layers else {})
    pieces = [*SPECIAL_TOKENS, *CHARACTERS, *(f"##{character}" for character in CHARACTERS)]
    pieces += [f"w{number}" for number in range(sizes["vocab_size"] - len(pieces))]
    config = BertConfig(**sizes, intermediate_size=4 * sizes["hidden_size"], pad_token_id=0)
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(directory)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=512).save_pretrained(directory)


def sentences(number: int, size: str, seed: int = 0) -> list[str]:
    """Return sentences of random words, with lengths as in Wikipedia: log-normal, median 24."""
    draw = random.Random(seed)
    words = SIZES[size]["vocab_size"] - len(SPECIAL_TOKENS) - 2 * len(CHARACTERS)
    lengths = (min(200, max(3, round(draw.lognormvariate(3.18, 0.44)))) for _ in range(number))
    return [" ".join(f"w{draw.randrange(words)}" for _ in range(length)) for length in lengths]
