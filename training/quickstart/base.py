"""The base encoder of the `quickstart` recipe: a WordPiece tokenizer and a small BERT.

Both are trained from scratch on the given sentences, BERT by masked language modelling. The encoder replaces
`bert-base-uncased` where there is no network.

Reference: Devlin et al. 2019 (BERT): 15 % of the tokens, of which 80 / 10 / 10 % are masked, replaced and kept.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch
from tokenizers import normalizers, pre_tokenizers
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, get_linear_schedule_with_warmup

from csezoo.modeling.contrastive.masked_language_modeling import mask_tokens

from ..environment import progress_bar

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_tokenizer(sentences: list[str]) -> BertTokenizer:
    """Make a lower-casing WordPiece tokenizer. Its pieces are the characters and all words of the sentences.

    The words are counted here, because the trainer of `tokenizers` numbers its pieces differently in every process.

    Example:
        >>> make_tokenizer(["The chef chopped the onions.", "The chef sang."]).tokenize("Chef sang.")
        ['chef', 'sang', '.']
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = Counter(
        word for text in sentences for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
    )
    by_count = sorted(words, key=lambda word: (-words[word], word))
    characters = sorted({character for word in words for character in word})
    pieces = [*SPECIAL_TOKENS, *by_count, *characters, *(f"##{character}" for character in characters)]
    return BertTokenizer(
        vocab={piece: number for number, piece in enumerate(dict.fromkeys(pieces))},
        do_lower_case=True,
        model_max_length=128,
    )


def _batches(rows: list[list[int]], batch_size: int, rng: random.Random) -> list[list[list[int]]]:
    """Return shuffled batches of rows of similar length, so that there is little padding."""
    rows = sorted(rows, key=lambda row: len(row) + rng.random())
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    rng.shuffle(batches)
    return batches


def train_base(
    sentences: list[str],
    directory: Path,
    *,
    seed: int = 42,
    hidden_size: int = 128,
    layers: int = 2,
    heads: int = 4,
    epochs: int = 2,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
) -> None:
    """Train tokenizer and encoder, and write a complete transformers directory (`BertForMaskedLM`).

    The files depend only on the sentences and `seed`. The random state of the caller does not change.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     train_base(["The chef sang."], Path(directory), hidden_size=8, layers=1, heads=1, epochs=1)
        ...     sorted(path.name for path in Path(directory).iterdir())
        ['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    tokenizer = make_tokenizer(sentences)
    rows = tokenizer(sentences, truncation=True, return_attention_mask=False)["input_ids"]
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rng = random.Random(seed)
        model = BertForMaskedLM(config).train()
        steps = epochs * -(-len(rows) // batch_size)
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
        scheduler = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        progress = progress_bar(steps, "masked language modelling")
        for _ in range(epochs):
            for batch in _batches(rows, batch_size, rng):
                encoded = tokenizer.pad({"input_ids": batch}, return_tensors="pt")
                corrupted, labels = mask_tokens(
                    encoded["input_ids"],
                    encoded["input_ids"] >= len(SPECIAL_TOKENS),
                    probability=0.15,
                    mask_token_id=tokenizer.mask_token_id,
                    vocab_size=len(tokenizer),
                )
                chosen = labels != -100
                states = model.bert(corrupted, encoded["attention_mask"]).last_hidden_state  # (batch, tokens, hidden)
                # Predict words only at the chosen tokens: a seventh of the work.
                words = labels[chosen]
                loss = F.cross_entropy(model.cls(states[chosen]), words)
                # [CLS] must predict the words too, so that it learns to summarise the sentence.
                summary = states[:, :1].expand_as(states)[chosen]
                loss = loss + F.cross_entropy(model.cls(summary), words)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                progress.set_postfix(loss=f"{loss.item():.2f}", refresh=False)
                progress.update()
        progress.close()
    model.eval().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
