"""Pictures of an encoder on STS-B: the spread of its similarities, pairs of sentences on a plane, scores by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from csezoo.modeling.pooling import pool

from ..environment import default_device
from ..errors import UserError
from ..evaluation.encoders import load_encoder, plain_encoder
from ..evaluation.significance import spearman
from ..evaluation.suites import encode_once
from ..evaluation.tasks.names import DEV_TASK
from ..evaluation.tasks.sts import PairTask, load_task, unit_vectors
from .vectors import draw_layers, draw_pairs, draw_similarities

POOLINGS = ["cls", "mean", "max"]


def similarities_picture(model: str, pooling: str | None, data: str, path: str | Path) -> None:
    """Draw the cosines of the pairs of STS-B test at each gold score."""
    encode, _ = load_encoder(model, pooling=pooling)
    task = load_task("STSBenchmark", data)
    draw_similarities(task.similarities(encode_once(encode, [task])), np.array(task.scores), path, title=task.name)


def pairs_picture(model: str, pooling: str | None, data: str, path: str | Path) -> None:
    """Draw pairs of STS-B dev: the first 20 with the same meaning (score 5), the first 20 unrelated (0)."""
    encode, _ = load_encoder(model, pooling=pooling)
    task = load_task(DEV_TASK, data)
    found = [[pair for pair, score in zip(task.pairs, task.scores, strict=True) if score == gold] for gold in (5, 0)]
    chosen = [pairs[:20] for pairs in found]
    if not all(chosen):
        raise UserError(f"{DEV_TASK}: the picture needs pairs with score 5 and with score 0; give the released data")
    pairs = chosen[0] + chosen[1]
    alike = np.array([True] * len(chosen[0]) + [False] * len(chosen[1]))
    vectors = encode_once(encode, [PairTask("pairs", pairs, [0.0] * len(pairs), task.source)])
    both = np.stack([unit_vectors(vectors([pair[side] for pair in pairs])) for side in (0, 1)], axis=1)
    draw_pairs(both, alike, path)


def layers_picture(model: str, pooling: str | None, data: str, path: str | Path) -> None:
    """Draw the score on STS-B test of every layer with every pooling. A zoo checkpoint is reduced to its backbone."""
    if pooling is not None:
        raise UserError(f"--pooling {pooling}: the picture shows all poolings; omit the option")
    draw_layers(layer_scores(model, load_task("STSBenchmark", data)), POOLINGS, path)


@torch.no_grad()
def layer_scores(model: str, task: PairTask, *, batch_size: int = 128) -> np.ndarray:
    """Return Spearman × 100 of each layer, embeddings first, with each of `POOLINGS`, `(layers, poolings)`."""
    encoder, tokenizer = plain_encoder(model, "cls")
    encoder.to(default_device())  # type: ignore[arg-type]  # a decorator hides `self`
    sentences = sorted(task.sentences(), key=lambda sentence: (len(sentence), sentence))
    rows = {sentence: number for number, sentence in enumerate(sentences)}
    batches = []
    for start in range(0, len(sentences), batch_size):
        batch = tokenizer(sentences[start : start + batch_size], padding=True, truncation=True, return_tensors="pt")
        batch = {name: batch[name].to(encoder.device) for name in ("input_ids", "attention_mask")}
        states = encoder(**batch, output_hidden_states=True).hidden_states
        pooled = [[pool((state,), batch["attention_mask"], mode) for mode in POOLINGS] for state in states]
        batches.append(torch.stack([torch.stack(modes) for modes in pooled]).cpu())  # (layers, poolings, texts, H)
    vectors = torch.cat(batches, dim=2).numpy()
    gold = np.array(task.scores)

    def score(table: np.ndarray) -> float:
        similarities = task.similarities(lambda texts: table[[rows[text] for text in texts]])
        # [CLS] of the embedding layer is the same for every sentence: its correlation counts as 0.
        return 0.0 if np.ptp(similarities) < 1e-9 else float(spearman(similarities[None], gold[None])[0])

    return np.array([[score(table) for table in modes] for modes in vectors])


PORTRAITS = {"similarities": similarities_picture, "pairs": pairs_picture, "layers": layers_picture}
