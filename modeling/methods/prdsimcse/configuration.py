"""PrdSimCSE's configuration, and the texts of its views."""

import zlib

from transformers import PreTrainedTokenizerBase

from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.keys import key
from .prefixes import NEGATIVE_PREFIXES, POSITIVE_PREFIXES, positive_prefix


class PrdSimCSEConfig(SentenceEncoderConfig):
    """The configuration of PrdSimCSE: text prefixes for the positive and the negative copy of each sentence.

    Example:
        >>> PrdSimCSEConfig(negative_prefix="prefix1").view_columns(3)
        [0, 1, 2]
    """

    model_type = "prdsimcse"

    positive_prefix: str = key(
        "level-um",
        "Prefix of the positive, one of the kinds of `prefixes.positive_prefix`, or `none`.",
        (*POSITIVE_PREFIXES, "none"),
    )
    negative_prefix: str = key(
        "prefix3",
        "Prefix of the negative, one of `prefixes.NEGATIVE_PREFIXES`, or `none` for no negative copies.",
        (*NEGATIVE_PREFIXES, "none"),
    )
    negative_separator: str = key(
        " ", "Text between negative prefix and sentence. The paper shows none; the default is a space."
    )
    prefix_length_unit: str = key(
        "words",
        "What a `level` counts: `words` between white space (as in the paper) or `pieces`.",
        ("words", "pieces"),
    )
    prefix_within_max_length: bool = key(
        False,
        "Truncate prefix and sentence together at the recipe's `max_length`. By default only the sentence is "
        "truncated: within 32 pieces, the longest prefix would leave 7 for the sentence.",
    )
    positive_prefix_share: float = key(1.0, "Share of sentences whose positive gets its prefix (table 13).", "[0, 1]")
    negative_prefix_share: float = key(
        1.0,
        "Share of sentences whose negative gets its prefix. Which sentences get a prefix depends only on their text.",
        "[0, 1]",
    )
    negative_without_prefix: str = key(
        "sentence",
        "What the negative is if it gets no prefix: the `sentence` itself, a false negative (caption of table 14), or "
        'an `empty` text (section 6.3: "empty characters").',
        ("sentence", "empty"),
    )
    denominator: str = key(
        "batch",
        "How to read eq. 2, which leaves open which vectors are negatives, see `objectives.prefix_contrastive`.",
        ("batch", "own", "all"),
    )
    projection_at_test: bool = key(True, "Keep the projection at test (section 4.1), unlike unsupervised SimCSE.")

    def check(self) -> None:
        super().check()
        if self.denominator != "batch" and self.hard_negative_weight != 0:
            raise ValueError(f"hard_negative_weight: only works with denominator: batch, got {self.denominator}")

    @property
    def prefixes_count_as_text(self) -> bool:
        return self.prefix_within_max_length

    def longest_prefix(self, tokenizer: PreTrainedTokenizerBase) -> int:
        if self.prefix_within_max_length:
            return 0
        longest = self._special_tokens(" ".join([self.positive_prefix.split("-")[-1]] * 4), tokenizer)
        texts = [longest, NEGATIVE_PREFIXES.get(self.negative_prefix, "") + self.negative_separator.rstrip()]
        return max(len(ids) for ids in tokenizer(texts, add_special_tokens=False).input_ids)

    def text_prefixes(self, sentences: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[str | None]]:
        views: list[list[str | None]] = [[""] * len(sentences), self._positive_prefixes(sentences, tokenizer)]
        if self.negative_prefix != "none":
            prefix = NEGATIVE_PREFIXES[self.negative_prefix] + self.negative_separator
            drawn = (_draw("negative", sentence) < self.negative_prefix_share for sentence in sentences)
            without = None if self.negative_without_prefix == "empty" else ""
            views.append([prefix if takes else without for takes in drawn])
        return views

    def _positive_prefixes(self, sentences: list[str], tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
        if self.positive_prefix == "none":
            return [""] * len(sentences)
        lengths: list[int | None] = [None] * len(sentences)
        if self.prefix_length_unit == "pieces" and sentences:
            lengths = [len(ids) for ids in tokenizer(sentences, add_special_tokens=False).input_ids]
        prefixes = []
        for sentence, length in zip(sentences, lengths, strict=True):
            prefix = positive_prefix(sentence, self.positive_prefix, length=length)
            takes = prefix and _draw("positive", sentence) < self.positive_prefix_share
            prefixes.append(f"{prefix} " if takes else "")
        return [self._special_tokens(prefix, tokenizer) for prefix in prefixes]

    @staticmethod
    def _special_tokens(prefix: str, tokenizer: PreTrainedTokenizerBase) -> str:
        for name, token in {"[CLS]": tokenizer.cls_token, "[MASK]": tokenizer.mask_token}.items():
            if name in prefix and token is None:
                raise ValueError(
                    f"positive_prefix: the tokenizer has no token for {name}; set positive_prefix: level-um"
                )
            prefix = prefix.replace(name, token or name)
        return prefix


def _draw(view: str, sentence: str) -> float:
    """Return a number from 0 to below 1 that depends only on the text, and not on epoch or process."""
    return zlib.crc32(f"{view}\n{sentence}".encode()) / 2**32
