"""Fit a whitening or a flow to a trained encoder."""

from __future__ import annotations

import logging
import math
import time
from itertools import islice

import torch
from tqdm.auto import trange
from transformers import PreTrainedTokenizerBase

from csezoo.modeling.contrastive.devices import forked_rng
from csezoo.modeling.contrastive.flow import WIDTH, draw_flow, flow_loss, start_flow
from csezoo.modeling.contrastive.rank_distillation import rank_distillation
from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel
from csezoo.modeling.contrastive.whitening import Whitening, principal_directions
from csezoo.modeling.serving.encoding_csezoo import read_batches, tokenize
from csezoo.modeling.serving.own_form_csezoo import Flow

from ...data.streams import reading_stream
from ...data.texts import load_sentences
from ...errors import UserError
from ...recipes import Recipe
from ..optimizers import UncorrectedAdamW

logger = logging.getLogger(__name__)
# Vectors in an update. The release of BERT-flow reads 32 pairs, and adds the losses of both sides.
FLOW_BATCH, SIDES = 32, 2
# The best on STS-B dev of SG-OPT's stand-in run, of batches of 256 and 512 and of temperatures 0.05, 0.1 and 0.2.
REFINED_BATCH, REFINED_TEMPERATURE = 512, 0.05


def fit_map(model: SentenceEncoderModel, tokenizer: PreTrainedTokenizerBase, recipe: Recipe, seed: int) -> float:
    """Fit the whitening or the flow of a recipe on its first training sentences, and add it to a trained encoder.

    The sentences are those of all text columns, row by row. A whitening depends on the seed only if
    `whitening_updates` train it.

    Returns:
        The seconds that it took.

    Raises:
        UserError: there are too few different sentences for so many dimensions, or a stream of them cannot be read.
    """
    start = time.perf_counter()
    served = model.config.normalize, model.config.truncate_dim
    model.config.normalize, model.config.truncate_dim = False, None  # they follow the map
    rows = load_sentences(recipe)
    most = recipe.flow_sentences if recipe.flow else recipe.whitening_sentences
    with reading_stream():
        texts = (row[column] for row in rows for column in sorted(row))
        sentences = list(islice(texts, most))
    if recipe.flow and recipe.flow_dropout:
        vectors = encode_with_dropout(model, sentences, tokenizer, recipe.eval_batch_size, seed)
    else:
        vectors = model.encode(
            sentences, tokenizer, batch_size=recipe.eval_batch_size, convert_to_numpy=False, show_progress_bar=True
        ).float()
    if recipe.flow:
        model.config.flow_width = WIDTH
        model.flow = fit_flow(
            vectors,
            epochs=recipe.flow_epochs,
            learning_rate=recipe.flow_learning_rate,
            seed=seed,
            start=recipe.flow_start,
            optimizer=recipe.flow_optimizer,
        )
    else:
        _whiten(model, vectors, recipe, seed)
    model.config.normalize, model.config.truncate_dim = served
    logger.info("%s fitted on %d sentences", "flow" if recipe.flow else "whitening", len(sentences))
    return time.perf_counter() - start


def encode_with_dropout(
    model: SentenceEncoderModel, sentences: list[str], tokenizer: PreTrainedTokenizerBase, batch_size: int, seed: int
) -> torch.Tensor:
    """Embed each sentence once with the dropout of training, without gradients, `(n, H)` in float32."""
    token_ids = tokenize(tokenizer, [model.prompt_text() + sentence for sentence in sentences])
    order, batches = read_batches(model, token_ids, tokenizer.pad_token_id, batch_size, show_progress_bar=True)
    model.train()
    with forked_rng(model.device), torch.no_grad():
        torch.manual_seed(seed)
        vectors = torch.cat([model.embed_batch(batch) for _, batch in batches])
    model.eval()
    return vectors[torch.tensor(order).argsort().to(vectors.device)].float()


def _whiten(model: SentenceEncoderModel, vectors: torch.Tensor, recipe: Recipe, seed: int) -> None:
    model.config.whitening_size = recipe.whitening
    model.whitening = Whitening(model.config.pooled_size, model.config.whitening_size).to(model.device)
    try:
        model.whitening.fit(vectors, recipe.whitening_power)
    except ValueError as error:
        raise UserError(f"whitening: {error}; give more training sentences, or a smaller --whitening") from error
    if recipe.whitening_updates:
        refine(model.whitening, vectors, power=recipe.whitening_power, updates=recipe.whitening_updates, seed=seed)


def refine(whitening: Whitening, vectors: torch.Tensor, *, power: float, updates: int, seed: int) -> None:
    """Train a fitted whitening, so that its few dimensions rank sentences as all dimensions do.

    The teacher is the whitening that keeps all dimensions. Its similarities and those of the short vectors are
    compared by ListNet, as in `rank_distillation`, by Adam in random batches of 512, with a learning rate that falls
    to 0. The encoder stays as it is.

    Args:
        whitening: `(H) -> (k)`, fitted to these vectors with this power.
        vectors: `(n, H)`, without gradients.

    References:
        Yoon et al. 2024, "Matryoshka-Adaptor", also trains a map of finished vectors to keep their similarities.
    """
    directions, variances = principal_directions(vectors)
    complete = (directions * variances ** (-power / 2)).to(vectors.dtype)  # (H, d)
    teachers = (vectors - whitening.mean) @ complete  # (n, d)
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        # (d, k): the short vectors begin as the first k dimensions of the teacher.
        mixture = torch.eye(len(variances), whitening.kernel.shape[1], device=vectors.device).requires_grad_()
        optimizer = torch.optim.Adam([mixture], lr=1e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
        for _ in trange(updates, desc="Refining the whitening", leave=None):
            batch = teachers[torch.randint(len(vectors), (REFINED_BATCH,), generator=generator).to(vectors.device)]
            short = batch @ mixture
            optimizer.zero_grad()
            rank_distillation(
                short,
                short,
                batch,
                loss="listnet",
                temperature=REFINED_TEMPERATURE,
                teacher_temperature=REFINED_TEMPERATURE,
            ).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        whitening.kernel.copy_(complete @ mixture)


def fit_flow(
    vectors: torch.Tensor,
    *,
    epochs: float,
    learning_rate: float,
    seed: int,
    start: str = "data",
    optimizer: str = "adam",
) -> Flow:
    """Fit a flow by Adam, in batches in random order.

    Args:
        vectors: `(n, H)`, without gradients.
        epochs: passes over them.
        learning_rate: of Adam, constant.
        seed: of the first weights and of the order.
        start: first weights: `data`, see `start_flow`, or `random`, see `draw_flow`.
        optimizer: `adam` in batches of 32; or `released`, as in the release of BERT-flow: `UncorrectedAdamW`, with
            decay of all weights and clipped gradients, in batches of 32 pairs. Here a pair is of any two vectors.

    Raises:
        UserError: there are fewer vectors than a batch has.
    """
    if len(vectors) < FLOW_BATCH:
        raise UserError(f"flow: {len(vectors)} sentences are too few; give at least {FLOW_BATCH}")
    with forked_rng(vectors.device), torch.enable_grad():
        torch.manual_seed(seed)
        flow = Flow(vectors.shape[1], WIDTH).to(vectors.device, vectors.dtype)
        if start == "random":
            draw_flow(flow)
        else:
            start_flow(flow, vectors[torch.randperm(len(vectors))[: 32 * FLOW_BATCH]])
        flow.requires_grad_(True)
        adam: torch.optim.Optimizer
        if optimizer == "released":
            adam = UncorrectedAdamW(flow.parameters(), lr=learning_rate, eps=1e-6, weight_decay=0.01)
            sides, most = SIDES, 1.0
        else:
            adam, sides, most = torch.optim.Adam(flow.parameters(), lr=learning_rate), 1, math.inf
        size = min(sides * FLOW_BATCH, len(vectors))
        order = torch.empty(0, dtype=torch.long)
        for _ in trange(round(epochs * len(vectors) / size), desc="Fitting the flow", leave=None):
            if len(order) < size:
                order = torch.randperm(len(vectors))
            chosen, order = order[:size], order[size:]
            adam.zero_grad()
            (sides * flow_loss(flow, vectors[chosen])).backward()
            torch.nn.utils.clip_grad_norm_(flow.parameters(), most)
            adam.step()
    return flow.requires_grad_(False).eval()
