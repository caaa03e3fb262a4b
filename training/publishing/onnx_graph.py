"""Write a serving model as an ONNX file, which runs without csezoo, transformers or torch."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from csezoo.modeling.serving.modeling_csezoo import CsezooModel

from ..errors import UserError

TOLERANCE = 1e-5
INPUTS = ("input_ids", "attention_mask")
OUTPUTS = ("last_hidden_state", "sentence_embedding")


def largest_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest number in them if that exceeds 1.

    Example:
        >>> largest_difference(np.array([0.5, 50.0]), np.array([0.5, 40.0]))
        0.2
    """
    return float(np.abs(actual - expected).max() / max(1.0, np.abs(actual).max(), np.abs(expected).max()))


class Graph(nn.Module):
    """The traced function: ids and mask `(B, T)` to token vectors `(B, T, H)` and sentence vectors `(B, D)`.

    A graph cannot raise the errors of the model. The vector of a row that the model refuses is nan instead: a row that
    is padded on the left, or that lacks the template's mask token because its end was cut off.
    """

    def __init__(self, encoder: CsezooModel):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        accepted = attention_mask[:, :1] == (attention_mask[:, :1] if self.encoder.causal else 1)  # padded on any side
        csezoo = self.encoder.config.csezoo
        if csezoo["pooling"] == "prompt":
            accepted &= (input_ids == csezoo["mask_token_id"]).any(1, keepdim=True)
        return output.last_hidden_state, output.pooler_output.where(accepted, torch.nan)


@torch.no_grad()
def write_onnx(file: Path, encoder: CsezooModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> None:
    """Trace the complete serving model, and compare its vectors under ONNX Runtime with the model's.

    Inputs are `input_ids` and `attention_mask` `(batch, tokens)` of any size; outputs are `last_hidden_state` and
    `sentence_embedding`, after pooling and the layers that follow it. The file contains the weights too; above
    1.5 GB, torch writes them beside it, to `model.onnx.data`.
    """
    from onnxruntime import InferenceSession

    def batch_of(texts: list[str]) -> tuple[torch.Tensor, ...]:
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        return tuple(batch[name] for name in INPUTS)

    graph = Graph(encoder).eval()
    file.parent.mkdir(exist_ok=True)
    for name in ("torch.onnx", "onnxscript"):  # of operators of torchvision, and of constants that are not folded
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        for category in (FutureWarning, UserWarning):  # torch warns about its own parts, and an axis named twice
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
    for batch in (texts[:1], texts[:2], texts):
        ids, mask = batch_of(batch)
        outputs = session.run(OUTPUTS, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        for name, expected, vectors in zip(OUTPUTS, graph(ids, mask), outputs, strict=True):
            if name == "last_hidden_state":  # vectors at padding mean nothing
                expected, vectors = expected[mask.bool()], vectors[mask.bool().numpy()]
            difference = largest_difference(vectors, expected.numpy())
            if not difference <= TOLERANCE:
                raise UserError(
                    f"the ONNX file was deleted: its {name} differs from the model's by {difference:.1g} "
                    f"({TOLERANCE:g} is allowed)"
                )
