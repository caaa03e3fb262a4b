"""Pictures of an encoder on STS-B: how its similarities spread, where pairs of sentences lie, what its layers know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from csezoo.modeling.pooling import pool

from ..errors import UserError
from ..evaluation.encoders import load_encoder, plain_encoder
from ..evaluation.significance import spearman
from ..evaluation.suites import encode_once
from ..evaluation.tasks.sts import DEV_TASK, PairTask, load_task, unit_vectors
from .vectors import draw_layers, draw_pairs, draw_similarities

POOLINGS = ["cls", "mean", "max"]


def similarities_picture(model: str, pooling: str | None, data: str, path: str | Path) -> None:
    """The cosines of STS-B test's pairs at each gold score."""
    encode, _ = load_encoder(model, pooling=pooling)
    task = load_task("STSBenchmark", data)
    draw_similarities(task.similarities(encode_once(encode, [task])), np.array(task.scores), path, title=task.name)


def pairs_picture(model: str, pooling: str | None, data: str, path: str | Path, *, each: int = 20) -> None:
    """Pairs of STS-B dev that mean the same (score 5) and unrelated ones (score 0), the first so many of each."""
    encode, _ = load_encoder(model, pooling=pooling)
    task = load_task(DEV_TASK, data)
    chosen = [[pair for pair, score in zip(task.pairs, task.scores, strict=True) if score == gold] for gold in (5, 0)]
    if not all(chosen):
        raise UserError(f"{DEV_TASK} has no pairs of score 5 or 0 to draw")
    pairs = [pair for kind in chosen for pair in kind[:each]]
    alike = np.array([True] * len(chosen[0][:each]) + [False] * len(chosen[1][:each]))
    vectors = encode_once(encode, [PairTask("pairs", pairs, [0.0] * len(pairs), task.source)])
    both = np.stack([unit_vectors(vectors([pair[side] for pair in pairs])) for side in (0, 1)], axis=1)
    draw_pairs(both, alike, path)


def layers_picture(model: str, pooling: str | None, data: str, path: str | Path) -> None:
    """The score on STS-B test of every layer under every pooling; of a checkpoint of the zoo, its bare backbone."""
    if pooling is not None:
        raise UserError(f"--pooling {pooling}: all poolings are drawn, leave the option out")
    draw_layers(layer_scores(model, load_task("STSBenchmark", data)), POOLINGS, path)


@torch.no_grad()
def layer_scores(model: str, task: PairTask, *, batch_size: int = 128) -> np.ndarray:
    """Spearman × 100 of each layer's output, the embedding layer's first, under `POOLINGS`: `(layers, poolings)`.

    Args:
        model: directory or Hub id.
        task: pairs with gold scores.
        batch_size: most texts a forward pass.
    """
    encoder, tokenizer = plain_encoder(model, "cls")
    encoder.to("cuda" if torch.cuda.is_available() else "cpu")  # type: ignore[arg-type]  # a decorator hides `self`
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
        # The embedding layer's [CLS] is the same for every sentence: it orders nothing.
        return 0.0 if np.ptp(similarities) < 1e-9 else float(spearman(similarities[None], gold[None])[0])

    return np.array([[score(table) for table in modes] for modes in vectors])


PORTRAITS = {"similarities": similarities_picture, "pairs": pairs_picture, "layers": layers_picture}
