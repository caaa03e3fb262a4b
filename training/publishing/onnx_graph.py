"""A serving model as an ONNX file, which runs without this project, transformers or torch."""

from __future__ import annotations

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..errors import UserError

TOLERANCE = 1e-5
INPUTS = ("input_ids", "attention_mask")
OUTPUTS = ("last_hidden_state", "sentence_embedding")


def largest_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Between two arrays, as a share of the largest number in them where that exceeds 1.

    Example:
        >>> largest_difference(np.array([0.5, 50.0]), np.array([0.5, 40.0]))
        0.2
    """
    return float(np.abs(found - expected).max() / max(1.0, np.abs(found).max(), np.abs(expected).max()))


def require_onnx() -> None:
    """Raise where what writes and runs an ONNX file is not installed, before any work."""
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise UserError(f"--onnx needs packages that are not there: pip install {' '.join(missing)}")


class Graph(nn.Module):
    """What is traced: `(B, T)` ids and mask to the tokens' vectors `(B, T, H)` and the sentences' `(B, D)`."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        return output.last_hidden_state, output.pooler_output


@torch.no_grad()
def write_onnx(file: Path, encoder: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> None:
    """Trace the whole serving model, its pooling and what follows it, and compare what ONNX Runtime makes of it.

    Inputs are `input_ids` and `attention_mask` `(batch, tokens)` of any sizes; outputs are `last_hidden_state` and
    `sentence_embedding`. Everything is in the one file, of less than 2 GB.

    Args:
        encoder: in evaluation mode, on the CPU.
        texts: to compare on, of different lengths: the first alone, the first two, all in one batch.

    Raises:
        UserError: the graph gives other vectors than the model, by more than `TOLERANCE`.
    """
    from onnxruntime import InferenceSession

    def batch_of(texts: list[str]) -> tuple[torch.Tensor, ...]:
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        return tuple(batch[name] for name in INPUTS)

    graph = Graph(encoder).eval()
    file.parent.mkdir(exist_ok=True)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # of operators that only torchvision has
    with warnings.catch_warnings():
        for category in (FutureWarning, UserWarning):  # torch's, of parts of its own and of an axis named twice
            warnings.simplefilter("ignore", category)
        torch.onnx.export(
            graph,
            batch_of(texts[:2]),
            file,
            input_names=INPUTS,
            output_names=OUTPUTS,
            dynamic_shapes=({0: "batch", 1: "tokens"},) * 2,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    session = InferenceSession(file, providers=["CPUExecutionProvider"])
    for some in (texts[:1], texts[:2], texts):
        ids, mask = batch_of(some)
        found = session.run(OUTPUTS, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        for name, expected, vectors in zip(OUTPUTS, graph(ids, mask), found, strict=True):
            if name == "last_hidden_state":  # what stands at padding means nothing
                expected, vectors = expected[mask.bool()], vectors[mask.bool().numpy()]
            difference = largest_difference(vectors, expected.numpy())
            if not difference <= TOLERANCE:
                raise UserError(f"the ONNX file differs from the model by {difference:.1g} in {name}: nothing is kept")
