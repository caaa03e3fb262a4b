"""Embed lists of texts with a serving model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

if TYPE_CHECKING:
    # only for types: that file imports this one
    from .modeling_sentence_encoder import SentenceEncoderModel, SentenceEncoderPreTrainedModel

# Most tokens in a forward pass, with padding. On a CPU, larger passes do not fit its caches: BERT-base on one thread
# takes up to twice as long. An accelerator needs large passes: as many tokens as `batch_size` texts of 128 tokens.
CPU_BATCH_TOKENS = 1024
TOKENS_PER_TEXT = 128
TOKENISED_AT_ONCE = 1000  # a tokenizer's output also has pieces and offsets, too much for a million texts


def load_tokenizer(model: SentenceEncoderPreTrainedModel) -> PreTrainedTokenizerBase:
    """Load the tokenizer saved beside a model. Only the generic class keeps a prompt in its post-processor."""
    if model.tokenizer is None:
        if model.loaded_from is None:
            raise ValueError(
                "this model was not loaded from a checkpoint; pass its tokenizer: encode(texts, tokenizer)"
            )
        model.tokenizer = PreTrainedTokenizerFast.from_pretrained(**model.loaded_from)
    return model.tokenizer


def encode_texts(
    model: SentenceEncoderModel,
    texts: str | list[str],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    batch_size: int,
    normalize_embeddings: bool,
    convert_to_numpy: bool,
    show_progress_bar: bool,
) -> Any:
    """Embed texts, see `SentenceEncoderModel.encode`."""
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
    texts = checked_texts(texts)
    tokenizer = tokenizer or load_tokenizer(model)
    token_ids = tokenize(tokenizer, texts)
    # Longest first, so that an input too large for the memory fails at once.
    order = sorted(range(len(texts)), key=lambda i: -len(token_ids[i]))
    lengths = [len(token_ids[i]) for i in order]
    most_tokens = CPU_BATCH_TOKENS if model.device.type == "cpu" else TOKENS_PER_TEXT * batch_size
    was_training = model.training
    model.eval()
    # The vectors stay on the model's device, longest text first, and are copied to the host once, at the end.
    embeddings = torch.empty(len(texts), model.config.embedding_size, dtype=model.dtype, device=model.device)
    batches = cut_batches(lengths, batch_size, most_tokens)
    # `leave=None`: a bar below another one leaves no line behind.
    for rows in logging.tqdm(batches, desc="Encoding", leave=None, disable=not show_progress_bar):
        with torch.inference_mode():
            batch = pad_batch([token_ids[i] for i in order[rows]], tokenizer.pad_token_id, model.device)
            embeddings[rows] = model(**batch).pooler_output
    model.train(was_training)
    embeddings = embeddings[torch.tensor(order, dtype=torch.long).argsort().to(model.device)]
    if normalize_embeddings:
        embeddings = F.normalize(embeddings, dim=-1)
    return embeddings.float().cpu().numpy() if convert_to_numpy else embeddings


def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list.

    Raises:
        TypeError: it is not a list of strings.
        ValueError: a text has half of a surrogate pair, which no tokenizer can read.

    Example:
        >>> checked_texts(("a cat", ""))
        ['a cat', '']
        >>> checked_texts(["a cat", None])
        Traceback (most recent call last):
        TypeError: texts: item 1 is None, not a string
    """
    if not isinstance(texts, Iterable) or isinstance(texts, dict | bytes):
        raise TypeError(f"texts: expected a string or a list of strings, got {texts!r:.60}")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts: item {number} is {text!r:.60}, not a string")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"texts: item {number}, {text!a:.60}, has half of a surrogate pair; pass "
                "text.encode('utf-8', 'replace').decode()"
            ) from None
    return texts


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[torch.Tensor]:
    """Return the token ids of every text, truncated at the tokenizer's limit and not padded."""
    starts = range(0, len(texts), TOKENISED_AT_ONCE)
    parts = (texts[start : start + TOKENISED_AT_ONCE] for start in starts)
    return [torch.tensor(ids) for part in parts for ids in tokenizer(part, truncation=True)["input_ids"]]


def cut_batches(lengths: list[int], most_texts: int, most_tokens: int) -> list[slice]:
    """Cut texts into batches with a limit of texts and of tokens. A text over the limit is a batch by itself.

    Args:
        lengths: tokens of each text, longest first.
        most_texts: limit of texts in a batch.
        most_tokens: limit of tokens in a batch, with padding.

    Example:
        >>> cut_batches([90, 50, 40, 30, 10, 10, 10], 3, 100)
        [slice(0, 1, None), slice(1, 3, None), slice(3, 6, None), slice(6, 7, None)]
    """
    batches, start = [], 0
    while start < len(lengths):
        texts = min(most_texts, max(1, most_tokens // lengths[start]))
        batches.append(slice(start, min(start + texts, len(lengths))))
        start += texts
    return batches


def pad_batch(token_ids: list[torch.Tensor], padding: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask`, `(B, T)`, without waiting for the copy to the device."""
    lengths = torch.tensor([len(ids) for ids in token_ids])
    input_ids = pad_sequence(token_ids, batch_first=True, padding_value=padding)
    attention_mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
    batch = {"input_ids": input_ids, "attention_mask": attention_mask}
    if device.type == "cuda":  # only a copy from pinned memory overlaps with computation
        batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
