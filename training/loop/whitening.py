"""Fit a whitening to a trained encoder and save it with the model."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from transformers import AutoModel

from csezoo.modeling.whitening import Whitening

from ..data.texts import load_sentences
from ..errors import UserError
from ..loading.backbones import SAFELY
from ..publishing.repository import save_repository
from ..recipes import Recipe

logger = logging.getLogger(__name__)


def whiten(repository: Path, recipe: Recipe) -> None:
    """Fit a whitening on the first training sentences, and save the repository again with it.

    Args:
        repository: a saved model.
        recipe: `whitening` is the number of dimensions, `whitening_sentences` the number of sentences.

    Raises:
        UserError: there are too few different sentences for so many dimensions.
    """
    model = AutoModel.from_pretrained(repository, **SAFELY).to("cuda" if torch.cuda.is_available() else "cpu")
    if model.config.whitening_size:
        return  # already done before the run was interrupted
    rows = load_sentences(recipe)
    sentences = [row["0"] for row in rows.take(recipe.whitening_sentences)]
    logger.info("whitening fitted on %d sentences", len(sentences))
    vectors = model.encode(sentences, batch_size=recipe.eval_batch_size, convert_to_numpy=False).float()
    model.config.whitening_size = recipe.whitening
    model.whitening = Whitening(model.config.hidden_size, model.config.whitening_size).to(model.device)
    try:
        model.whitening.fit(vectors)
    except ValueError as error:
        raise UserError(f"whitening: {error}; give more training sentences, or a smaller --whitening") from error
    save_repository(repository, model, model.tokenizer, recipe, [])
