"""Load the tokenizer of a pre-trained encoder."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from ..errors import UserError, one_line
from .templates import remove_full_stop


def load_tokenizer(model: str, **options: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a pre-trained encoder, without the full stops that a checkpoint of the zoo adds at test.

    Raises:
        UserError: the model has no tokenizer, or its tokenizer lacks the special tokens of an encoder.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{model}: its tokenizer could not be loaded ({one_line(error)}); put tokenizer.json beside the weights"
        ) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes an empty one if files are missing
        raise UserError(f"{model}: it has no tokenizer; put its tokenizer.json beside the weights")
    if tokenizer.cls_token is None or tokenizer.sep_token is None or tokenizer.pad_token is None:
        raise UserError(
            f"{model}: its tokenizer lacks the special tokens of BERT or RoBERTa; give the tokenizer of an encoder"
        )
    remove_full_stop(tokenizer)
    return tokenizer


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple:
    """Return the ids of all special tokens, in a form that can be compared."""
    ids = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id)
    return ids, sorted(tokenizer.all_special_ids)
