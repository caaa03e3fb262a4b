"""Embedding lists of texts with a serving model."""

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging


def load_tokenizer(model) -> PreTrainedTokenizerFast:
    """The tokenizer saved beside a model, as its file says: the generic class keeps a prompt in its post-processor."""
    if model.loaded_from is None:
        raise ValueError("this model was not loaded from a checkpoint: pass its tokenizer to encode(texts, tokenizer)")
    if model.tokenizer is None:
        model.tokenizer = PreTrainedTokenizerFast.from_pretrained(**model.loaded_from)
    return model.tokenizer


@torch.no_grad()
def encode_texts(
    model,
    texts: str | list[str],
    tokenizer=None,
    *,
    batch_size: int,
    normalize_embeddings: bool,
    convert_to_numpy: bool,
    show_progress_bar: bool,
):
    """See `SentenceEncoderModel.encode`."""
    if isinstance(texts, str):
        return encode_texts(
            model,
            [texts],
            tokenizer,
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            convert_to_numpy=convert_to_numpy,
            show_progress_bar=show_progress_bar,
        )[0]
    if batch_size < 1:
        raise ValueError(f"batch_size: {batch_size} must be at least 1")
    tokenizer = tokenizer or load_tokenizer(model)
    was_training = model.training
    model.eval()
    # Longest first: an input too large for the memory fails at once, and batches hold texts of similar length.
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    embeddings = torch.empty(len(texts), model.config.embedding_size, dtype=model.dtype, device=model.device)
    starts = range(0, len(texts), batch_size)
    # `leave=None`: below another bar this one leaves no line behind.
    for start in logging.tqdm(starts, desc="Encoding", leave=None, disable=not show_progress_bar):
        rows = order[start : start + batch_size]
        batch = tokenizer([texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt")
        batch = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
        embeddings[rows] = model(**batch).pooler_output
    model.train(was_training)
    if normalize_embeddings:
        embeddings = F.normalize(embeddings, dim=-1)
    return embeddings.float().cpu().numpy() if convert_to_numpy else embeddings
