"""Tokenise texts, and collate rows of token ids into padded batches of views."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any

import datasets
import tokenizers
import torch
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from csezoo.modeling import SentenceEncoderConfig

from ..errors import UserError, as_user_error
from ..loading.templates import Template
from ..loading.tokenizers import tokenizer_sha256


def tokenize(
    batch: dict[str, list],
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    config: SentenceEncoderConfig | None = None,
    prompt: str = "",
) -> dict[str, list]:
    """Tokenise the sentences of each column without special tokens, truncated to `length` word pieces.

    Args:
        batch: columns of texts, named by numbers. Other columns are left out.
        config: of the method. It may add text prefixes, and decides whether `length` counts them.
        prompt: text in front of every sentence; `length` counts it.

    Returns:
        Token ids of each view, by its number.

    Raises:
        UserError: a method with text prefixes got more than one column.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_padding()

    def ids(texts: list[str], cut: bool = True) -> list[list[int]]:
        if cut:
            backend.enable_truncation(length, direction=tokenizer.truncation_side)
        else:
            backend.no_truncation()
        # The tokenizer's own call would also make lists of everything else in an encoding, and take 1.5 times as long.
        return [row.ids for row in backend.encode_batch_fast(texts, add_special_tokens=False)]

    columns = {column: texts for column, texts in batch.items() if column.isdigit()}
    if config is None or not (prefixes := config.text_prefixes(columns["0"], tokenizer)):
        return {column: ids([prompt + text for text in texts]) for column, texts in columns.items()}
    if len(columns) > 1:
        raise UserError(f"text_columns: {config.model_type} makes views from one column, got {len(columns)}; name one")
    views, of_prompt = {}, len(ids([prompt.rstrip()], cut=False)[0])
    for view, prefixed in enumerate(prefixes):
        texts = ["" if prefix is None else text for prefix, text in zip(prefixed, columns["0"], strict=True)]
        before = [prompt + prefix if prefix else "" for prefix in prefixed]
        # The space after a prefix belongs to the sentence: byte-level vocabularies make it part of the first word.
        spaced = [
            head[len(head.rstrip()) :] + text if head else prompt + text
            for head, text in zip(before, texts, strict=True)
        ]
        heads = ids([head.rstrip() for head in before], cut=False)
        rows = []
        for head, tail in zip(heads, ids(spaced), strict=True):
            counted = len(head) if config.prefixes_count_as_text else min(len(head), of_prompt)
            left = max(0, length - counted)
            tail = tail[:left] if tokenizer.truncation_side == "right" else tail[max(0, len(tail) - left) :]
            rows.append((head + tail)[: length if config.prefixes_count_as_text else None])
        views[str(view)] = rows
    return views


def tokenize_once(
    sentences: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    config: SentenceEncoderConfig | None = None,
    prompt: str = "",
) -> datasets.Dataset:
    """Apply `tokenize` to a data set. The result is cached by all that it depends on, with these functions."""
    options = {"tokenizer": tokenizer, "length": length, "config": config, "prompt": prompt}
    prefixes = config.to_json_string() if config and config.text_prefixes([], tokenizer) else None
    code = [_source(tokenize), *([_source(type(config).text_prefixes)] if config and prefixes else [])]
    vocabulary = [tokenizers.__version__, tokenizer_sha256(tokenizer), tokenizer.truncation_side]
    fingerprint = Hasher.hash([sentences._fingerprint, *code, *vocabulary, length, prefixes, prompt])
    return sentences.map(tokenize, batched=True, fn_kwargs=options, new_fingerprint=fingerprint, desc="Tokenising")


def _source(function: Callable[..., Any]) -> str:
    """Return the text of a function, or its name where there is no text, as in a compiled file."""
    try:
        return inspect.getsource(function)
    except OSError:
        return function.__qualname__


@dataclass
class ViewCollator:
    """Collates rows of token ids into a padded batch of views `(B, V, T)`.

    Args:
        templates: ids before and after the sentence, one pair per view (the last for all further views).
        view_columns: maps the number of columns to the column of each view, see `SentenceEncoderConfig.view_columns`.
        edit_sentence: edits each sentence of a training batch, see `SentenceEncoderConfig.edit_sentence`.
        tokenize: applied first, if the rows are texts (streams).
        edits_special_tokens: give `edit_sentence` the templates and special tokens too.
    """

    templates: list[Template]
    pad_token_id: int
    view_columns: Callable[[int], Iterable[int]]
    edit_sentence: Callable[[list[list[int]], Random], list[list[int]]] | None = None
    tokenize: Callable[[dict], dict] | None = None
    edits_special_tokens: bool = False

    def __call__(self, rows: list[dict[str, Any]], draws: Iterable[Random] = ()) -> dict[str, torch.Tensor]:
        """Return a padded batch of rows.

        Args:
            draws: a random generator for each sentence, see `draws_of`. Without them nothing is edited.
        """
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        labels = columns.pop("label", None)
        if self.tokenize:
            columns = self.tokenize(columns)
        with as_user_error():  # the method may need another number of columns
            views = [columns[str(column)] for column in self.view_columns(len(columns))]
        sentences = [list(sentence) for sentence in zip(*views, strict=True)]
        if not self.edits_special_tokens:
            sentences = self._edited(sentences, draws)
        sentences = [self._complete(sentence) for sentence in sentences]
        if self.edits_special_tokens:
            sentences = self._edited(sentences, draws)
        sequences = list(chain.from_iterable(sentences))
        lengths = torch.tensor([len(ids) for ids in sequences])
        real = torch.arange(int(lengths.max())) < lengths[:, None]
        input_ids = torch.full(real.shape, self.pad_token_id)
        input_ids[real] = torch.tensor(list(chain.from_iterable(sequences)))
        shape = (len(rows), len(views), -1)
        collated = {"input_ids": input_ids.view(shape), "attention_mask": real.long().view(shape)}
        return collated if labels is None else {**collated, "labels": torch.tensor(labels)}

    def _edited(self, sentences: list[list[list[int]]], draws: Iterable[Random]) -> list[list[list[int]]]:
        if self.edit_sentence is None:
            return sentences
        edited = [self.edit_sentence(sentence, draw) for sentence, draw in zip(sentences, draws, strict=False)]
        return edited + sentences[len(edited) :]

    def _complete(self, sentence: list[list[int]]) -> list[list[int]]:
        """Put each view of a sentence into its template, with the special tokens."""
        templates = (self.templates[min(view, len(self.templates) - 1)] for view in range(len(sentence)))
        return [before + ids + after for (before, after), ids in zip(templates, sentence, strict=True)]
