"""What a checkpoint gave when it was saved, token ids and vectors of a few sentences, and whether it still does."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

if TYPE_CHECKING:
    from .modeling_sentence_encoder import SentenceEncoderModel  # which imports this file

FINGERPRINT_NAME = "fingerprint.json"
# How far the elements of a vector may lie from those that are stored, in units of their root mean square. In float32
# another attention implementation moves them by 1e-5 after 24 layers; in half precision rounding adds up.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.2}


def load_fingerprint(model: SentenceEncoderModel) -> dict:
    """The fingerprint saved beside a model; transformers finds it where it found the weights.

    Raises:
        ValueError: the model was not loaded from a checkpoint.
        OSError: the checkpoint has no fingerprint.
    """
    if model.loaded_from is None:
        raise ValueError("this model was not loaded from a checkpoint: there is no fingerprint to compare it with")
    where = dict(model.loaded_from)
    path = cached_file(where.pop("pretrained_model_name_or_path"), FINGERPRINT_NAME, **where)
    fingerprint, _ = PretrainedConfig.get_config_dict(cast(str, path))  # where there is none, an error was raised
    return fingerprint


def tokenize_sentences(tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> list[list[int]]:
    """Token ids of each sentence, cut at the tokenizer's limit."""
    return tokenizer(sentences, truncation=True).input_ids


@torch.no_grad()
def embed_token_ids(model: SentenceEncoderModel, token_ids: list[list[int]]) -> torch.Tensor:
    """Embeddings `(n, H)` in float32 of sentences as token ids.

    All but the last go through the model together, padded; the last, the longest, would have most of it be padding.
    """
    was_training = model.training
    model.eval()
    embeddings = []
    for part in (token_ids[:-1], token_ids[-1:]):
        rows = [torch.tensor(row, device=model.device) for row in part]
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        padding = model.config.backbone_config.pad_token_id
        ids = pad_sequence(rows, batch_first=True, padding_value=padding)
        embeddings.append(model(input_ids=ids, attention_mask=mask).pooler_output)
    model.train(was_training)
    return torch.cat(embeddings).float().cpu()


def verify_fingerprint(
    model: SentenceEncoderModel, tokenizer: PreTrainedTokenizerBase, fingerprint: dict
) -> list[str]:
    """See `SentenceEncoderModel.verify`.

    Tokenizer and model are compared apart: the vectors are those of the stored token ids.
    """
    sentences, token_ids = fingerprint["sentences"], fingerprint["token_ids"]
    names = [repr(text if len(text) <= 40 else f"{text[:40]}…") for text in sentences]
    made = tokenize_sentences(tokenizer, sentences)
    problems = []
    if others := [name for name, ids, stored in zip(names, made, token_ids, strict=True) if ids != stored]:
        problems.append(f"the tokenizer gives other token ids for {', '.join(others)}")
    expected = torch.tensor(fingerprint["embeddings"])
    found = embed_token_ids(model, token_ids)
    tolerance = TOLERANCE[model.dtype]
    if found.shape != expected.shape:
        problems.append(f"the vectors have {found.shape[1]} dimensions and not {expected.shape[1]}")
    else:
        distances = (found - expected).abs().amax(1) / expected.square().mean(1).sqrt()
        off = [
            f"by {d:.2g} for {name}" for name, d in zip(names, distances.tolist(), strict=True) if not d <= tolerance
        ]
        if off:
            problems.append(f"{len(off)} of {len(names)} vectors are off ({tolerance:g} is allowed): {', '.join(off)}")
    if problems:
        raise ValueError("; ".join(problems))
    return [
        f"token ids: those of {len(names)} sentences are as stored",
        f"vectors: those of {len(names)} sentences are as stored, off by {distances.max():.1e} at most "
        f"({tolerance:g} is allowed)",
    ]
