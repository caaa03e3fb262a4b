"""The base encoder of the `quickstart` recipe: a WordPiece tokenizer and a small BERT.

Both are trained from scratch on the given sentences, BERT by masked language modelling. The encoder replaces
`bert-base-uncased` where there is no network.

Reference: Devlin et al. 2019 (BERT): 15 % of the tokens, of which 80 / 10 / 10 % are masked, replaced and kept.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, get_linear_schedule_with_warmup

from csezoo.modeling.masked_language_modeling import mask_tokens

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_tokenizer(sentences: list[str], vocab_size: int = 3000) -> BertTokenizer:
    """Train a lower-casing WordPiece tokenizer with at most `vocab_size` pieces.

    Example:
        >>> train_tokenizer(["The chef chopped the onions.", "The chef sang."]).tokenize("Chef sang.")
        ['chef', 'sang', '.']
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=True, model_max_length=128)


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
    epochs: int = 4,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    vocab_size: int = 3000,
) -> None:
    """Train tokenizer and encoder, and write a complete transformers directory (`BertForMaskedLM`).

    With the defaults and 30,000 sentences of the world this takes about 90 seconds on two processor cores. For a given
    tokenizer the weights depend only on the sentences and `seed`. The tokenizer itself can differ between processes,
    because the `tokenizers` library numbers word pieces in a different order each time. The random state of
    the caller does not change.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     train_base(["The chef sang."], Path(directory), hidden_size=8, layers=1, heads=1, epochs=1)
        ...     sorted(path.name for path in Path(directory).iterdir())
        ['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    tokenizer = train_tokenizer(sentences, vocab_size)
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
        progress = tqdm(total=steps, desc="masked language modelling", disable=None)
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
