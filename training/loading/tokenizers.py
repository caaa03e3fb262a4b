"""Load the tokenizer of a pre-trained encoder."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from typing import Any

from tokenizers.normalizers import Lowercase, Sequence
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..errors import UserError, library_errors
from .templates import remove_additions

# A character without a word piece: some damaged tokenizers load, and fail only here.
UNKNOWN = "☃"


def reading_tokenizer(model: str) -> AbstractContextManager[None]:
    """Turn the errors of damaged tokenizer files into one line, see `library_errors`."""
    return library_errors(
        f"{model}: its tokenizer could not be loaded ({{error}}); put tokenizer.json beside the weights"
    )


def load_tokenizer(model: str, *, lower_case: bool = False, **options: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a pre-trained encoder, without what a checkpoint of the zoo adds to a text at test.

    Args:
        lower_case: let it lower-case every text first, as `do_lower_case` of sentence-transformers does.

    Raises:
        UserError: the model has no tokenizer, or its tokenizer lacks the special tokens of an encoder.
    """
    with reading_tokenizer(model):
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False, **options)
        tokenizer(UNKNOWN)
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes an empty one if files are missing
        raise UserError(f"{model}: it has no tokenizer; put its tokenizer.json beside the weights")
    framed = tokenizer.cls_token is not None and tokenizer.sep_token is not None
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token  # Llama's has no padding; the attention mask hides it
    if (tokenizer.eos_token is None and not framed) or tokenizer.pad_token is None:
        raise UserError(
            f"{model}: its tokenizer has no token for the end of a text, or none for padding; give the tokenizer of "
            "an encoder or decoder"
        )
    remove_additions(tokenizer)
    if lower_case:
        backend = tokenizer.backend_tokenizer
        backend.normalizer = Sequence([Lowercase(), *([backend.normalizer] if backend.normalizer else [])])
    return tokenizer


def refuse_missing_embeddings(model: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Refuse a tokenizer with a token for which the model has no embedding."""
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"{model}: its tokenizer has no padding token; put its tokenizer_config.json beside the weights"
        )
    largest = max(tokenizer.get_vocab().values())
    if largest >= vocab_size:
        raise UserError(
            f"{model}: its tokenizer has the token id {largest}, but the model has only {vocab_size} embeddings; give "
            "the tokenizer that belongs to the model"
        )


def refuse_without_mask_token(model: str, tokenizer: PreTrainedTokenizerBase, key: str) -> None:
    """Refuse a tokenizer without a mask token, which a key of the recipe needs."""
    if tokenizer.mask_token is None:
        raise UserError(
            f"{key}: the tokenizer of {model} has no mask token; give another --base_model, or leave {key} out"
        )


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple:
    """Return the ids of all special tokens, in a form that can be compared."""
    ids = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id)
    return ids, sorted(tokenizer.all_special_ids)


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a checksum of how a tokenizer splits texts, whatever it truncates and pads."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
