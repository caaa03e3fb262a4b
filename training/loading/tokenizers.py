"""A pre-trained encoder's own tokenizer."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from ..errors import UserError, one_line


def load_tokenizer(model: str, **options: Any) -> PreTrainedTokenizerBase:
    """A pre-trained encoder's own tokenizer.

    Raises:
        UserError: it has none, or one without the special tokens of an encoder.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        raise UserError(f"{model} has no tokenizer ({one_line(error)})") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes up an empty one where files are missing
        raise UserError(f"{model} has no tokenizer: put its tokenizer.json beside the weights")
    if tokenizer.cls_token is None or tokenizer.sep_token is None or tokenizer.pad_token is None:
        raise UserError(f"{model}: its tokenizer lacks the special tokens of a BERT or RoBERTa encoder")
    return tokenizer


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple:
    ids = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id)
    return ids, sorted(tokenizer.all_special_ids)
