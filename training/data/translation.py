"""Translate sentences and back again with any sequence-to-sequence models of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Tokenizer

from ..environment import default_device
from ..errors import UserError, library_errors
from ..loading.sizes import load_pretrained

Translate = Callable[[Sequence[str]], list[str]]


def translator(
    name: str, *, beams: int, max_length: int, prefix: str = "", languages: tuple[str, str] | None = None
) -> Translate:
    """Load a translation model as a function of a batch of sentences, by beam search without sampling.

    Args:
        max_length: longest sentence and longest translation, in word pieces.
        prefix: before each sentence, as T5 needs it.
        languages: codes of source and target, for a model of many languages (mBART, M2M100, NLLB).

    Raises:
        UserError: the model cannot be loaded, is too large or has fewer positions, or does not know a language.
    """
    with library_errors(
        f"{name!r} could not be loaded as a sequence-to-sequence model ({{error}}); give the directory or Hub id of "
        "one, or install the extra `translation`, if a library is missing"
    ):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model, _ = load_pretrained(AutoModelForSeq2SeqLM, name)
    positions = model.config.to_dict().get("max_position_embeddings")  # T5 has no limit
    if positions and max_length > positions:
        raise UserError(f"max_length: {name!r} has {positions} positions; give --max_length {positions} or less")
    model = model.to(default_device()).eval()
    options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": max_length, "do_sample": False}
    if languages:
        if isinstance(tokenizer, M2M100Tokenizer):
            known = tokenizer.lang_code_to_id
        else:
            known = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        if unknown := [language for language in languages if language not in known]:
            raise UserError(f"languages: {name!r} has no {unknown[0]!r}; give two codes of its tokenizer")
        source, target = languages
        tokenizer.src_lang = source
        options |= {"forced_bos_token_id": known[target]}

    @torch.inference_mode()
    def translate(sentences: Sequence[str]) -> list[str]:
        texts = [prefix + sentence for sentence in sentences]
        batch = tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
        batch = {key: batch[key].to(model.device) for key in ("input_ids", "attention_mask")}
        ids = model.generate(**batch, **options)
        if languages:
            ids = ids[:, 2:]  # M2M100's tokenizer does not skip the language, which follows the token of the start
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return translate


def round_trip(forward: Translate, back: Translate) -> Translate:
    """Return the translation there and back again. An empty translation leaves the sentence as it is.

    References:
        Kim et al. 2021 (SG-OPT), appendix A.2: contrastive BT, by WMT'19's English-German models.

    Example:
        >>> def shout(texts): return [text.upper() for text in texts]
        >>> round_trip(shout, shout)(["ab"])
        ['AB']
    """

    def other(sentences: Sequence[str]) -> list[str]:
        returned = back(forward(sentences))
        return [text.strip() or sentence for text, sentence in zip(returned, sentences, strict=True)]

    return other
