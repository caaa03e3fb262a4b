"""Embed lists of texts with a serving model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

if TYPE_CHECKING:
    # only for types: that file imports this one
    from .modeling_pretrained import SentenceEncoderPreTrainedModel
    from .modeling_sentence_encoder import SentenceEncoderModel

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
    texts: list[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: int,
    dimensions: int | None,
    show_progress_bar: bool,
) -> torch.Tensor:
    """Embed texts, see `SentenceEncoderModel.encode`; return `(n, dimensions)` on the model's device."""
    # The vectors stay on the model's device, longest text first, and are copied to the host once, at the end.
    width = min(dimensions or model.config.embedding_size, model.config.embedding_size)
    embeddings = torch.empty(len(texts), width, dtype=model.dtype, device=model.device)
    order, batches = read_batches(model, texts, tokenizer, batch_size, show_progress_bar)
    with evaluating(model), torch.inference_mode():
        for rows, batch in batches:
            embeddings[rows] = model(**batch, pooled_only=True, return_dict=True).pooler_output[:, :dimensions]
    return embeddings[torch.tensor(order, dtype=torch.long).argsort().to(model.device)]


def encode_token_vectors(
    model: SentenceEncoderModel,
    texts: list[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: int,
    show_progress_bar: bool,
) -> list[torch.Tensor]:
    """Return the vectors of each text's tokens, `(tokens, H)` with special tokens, on the model's device."""
    order, batches = read_batches(model, texts, tokenizer, batch_size, show_progress_bar)
    vectors: list[torch.Tensor] = [torch.empty(0)] * len(texts)
    with evaluating(model), torch.inference_mode():
        for rows, batch in batches:
            states = model(**batch, return_dict=True).last_hidden_state
            for text, states_of_text, mask in zip(order[rows], states, batch["attention_mask"], strict=True):
                vectors[text] = states_of_text[mask.bool()]
    return vectors


@contextmanager
def evaluating(model: SentenceEncoderModel) -> Iterator[None]:
    """Switch dropout off inside the context."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def read_batches(
    model: SentenceEncoderModel,
    texts: list[str],
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    show_progress_bar: bool,
) -> tuple[list[int], Iterator[tuple[slice, dict[str, torch.Tensor]]]]:
    """Cut texts into batches of similar length.

    Returns:
        The numbers of the texts in the order of the batches, longest first, so that an input too large for the memory
        fails at once; and for each batch its part of that order and the model's inputs.
    """
    token_ids = tokenize(tokenizer, texts)
    order = sorted(range(len(texts)), key=lambda i: -len(token_ids[i]))
    most_tokens = CPU_BATCH_TOKENS if model.device.type == "cpu" else TOKENS_PER_TEXT * batch_size
    slices = cut_batches([len(token_ids[i]) for i in order], batch_size, most_tokens)
    # `leave=None`: a bar below another one leaves no line behind.
    bar = logging.tqdm(slices, desc="Encoding", leave=None, disable=not show_progress_bar)
    padding = tokenizer.pad_token_id
    return order, ((rows, pad_batch([token_ids[i] for i in order[rows]], padding, model.device)) for rows in bar)


def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list.

    Raises:
        TypeError: it is not a list of strings, for example a table.
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
    if getattr(texts, "ndim", 1) > 1:  # a table would give the names of its columns
        raise TypeError(f"texts: expected a list of strings, got {type(texts).__name__}; give one column of it")
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
