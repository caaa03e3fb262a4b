"""Fingerprints: the token ids and vectors of a few sentences when a checkpoint was saved, to verify it later."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerBase

from .encoding_csezoo import EncodesTexts

FINGERPRINT_NAME = "fingerprint.json"
# Largest difference between an element of a vector and the stored one, relative to their root mean square. In float32
# another attention implementation changes them by 1e-5 after 24 layers; in half precision rounding adds up.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.2}

# Short and long sentences, lower and upper case, accents, digits, signs, and characters without word pieces in any of
# the zoo's tokenizers. The last sentence is longer than any encoder of the BERT family reads.
SENTENCES = [
    "Yes",
    "A cat sits on the mat.",
    "The QUICK brown Fox jumps over the Lazy dog",
    "Königin Zoë mag crème brûlée, señor Ångström nicht.",
    "Is it 3.14 or 2,718? (Both; by 100 % & more!)",
    "Good morning 🙂 ☃ 你好",
    "  two  spaces,\ta tab and don't-split hy-phens ",
    " ".join(["the river runs past the old house and the small horse sees it"] * 80),
]
DIGITS = 7  # significant digits, as many as a float32 has


def tokenize_sentences(tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> list[list[int]]:
    """Return the token ids of each sentence, truncated at the tokenizer's limit."""
    return tokenizer(sentences, truncation=True).input_ids


def embed_token_ids(model: EncodesTexts, token_ids: list[list[int]]) -> torch.Tensor:
    """Return the float32 embeddings `(n, H)` of sentences given as token ids."""
    padding = model.config.backbone_config.pad_token_id or 0  # the attention mask hides it
    # One at a time: padded to the last sentence, all together would need more memory than a large encoder.
    return model.encode_token_ids(list(map(torch.tensor, token_ids)), padding, batch_size=1).float().cpu()


def new_fingerprint(model: EncodesTexts, tokenizer: PreTrainedTokenizerBase) -> dict:
    """Return the fingerprint of a model, which must be on the CPU and in float32."""
    token_ids = tokenize_sentences(tokenizer, SENTENCES)
    embeddings = embed_token_ids(model, token_ids).tolist()
    return {
        "sentences": SENTENCES,
        "token_ids": token_ids,
        "embeddings": [[float(f"{x:.{DIGITS}g}") for x in vector] for vector in embeddings],
    }


def verify_fingerprint(model: EncodesTexts, tokenizer: PreTrainedTokenizerBase, fingerprint: dict) -> list[str]:
    """Compare a model with a fingerprint, see `CsezooModel.verify`.

    Tokenizer and model are checked separately, because the vectors are computed from the stored token ids.
    """
    sentences, token_ids = fingerprint["sentences"], fingerprint["token_ids"]
    names = [repr(text if len(text) <= 40 else f"{text[:40]}…") for text in sentences]
    current = tokenize_sentences(tokenizer, sentences)
    problems = []
    if others := [name for name, ids, stored in zip(names, current, token_ids, strict=True) if ids != stored]:
        problems.append(f"the tokenizer returns other token ids for {', '.join(others)}")
    expected = torch.tensor(fingerprint["embeddings"])
    vectors = embed_token_ids(model, token_ids)
    tolerance = TOLERANCE[model.dtype]
    if vectors.shape != expected.shape:
        problems.append(f"the vectors have {vectors.shape[1]} dimensions instead of {expected.shape[1]}")
    else:
        distances = (vectors - expected).abs().amax(1) / expected.square().mean(1).sqrt()
        off = [
            f"by {d:.2g} for {name}" for name, d in zip(names, distances.tolist(), strict=True) if not d <= tolerance
        ]
        if off:
            problems.append(f"{len(off)} of {len(names)} vectors differ ({tolerance:g} is allowed): {', '.join(off)}")
    if problems:
        raise ValueError("; ".join(problems))
    return [
        f"token ids: {len(names)} sentences match the fingerprint",
        f"vectors: {len(names)} sentences match the fingerprint, largest difference {distances.max():.1e} "
        f"({tolerance:g} is allowed)",
    ]
