"""Configuration of ConSERT."""

from random import Random
from typing import Any

from .configuration_sentence_encoder import SentenceEncoderConfig

VIEWS = ("none", "shuffle", "token_cutoff", "feature_cutoff")


class ConSERTConfig(SentenceEncoderConfig):
    """The configuration of a ConSERT model.

    Args:
        first_view, second_view: how each copy of a sentence is changed (paper, section 3.2). `shuffle` puts its word
            pieces in random order, `token_cutoff` sets the embeddings of some tokens to zero, `feature_cutoff` sets
            some features of all its embeddings to zero. The special tokens keep their places.
        cutoff_rate: share of the tokens or features that are cut off: 0.2 for features in the release.
        in_view_negatives: use the other sentences of both views as negatives, as NT-Xent does (eq. 1). Otherwise only
            those of the other view, as in SimCSE.
        temperature: τ; 0.1 in the paper.

    Example:
        >>> ConSERTConfig(second_view="none").edit_sentence([[1, 2, 3], [1, 2, 3]], Random(0))
        [[1, 2, 3], [1, 2, 3]]
    """

    model_type = "consert"
    allowed = {"first_view": VIEWS, "second_view": VIEWS, "cutoff_rate": "[0, 1)"}

    def __init__(
        self,
        first_view: str = "feature_cutoff",
        second_view: str = "shuffle",
        cutoff_rate: float = 0.2,
        in_view_negatives: bool = True,
        temperature: float = 0.1,
        **kwargs: Any,
    ):
        self.first_view = first_view
        self.second_view = second_view
        self.cutoff_rate = cutoff_rate
        self.in_view_negatives = in_view_negatives
        super().__init__(temperature=temperature, **kwargs)

    @property
    def views(self) -> tuple[str, str]:
        return self.first_view, self.second_view

    def edit_sentence(self, views: list[list[int]], draw: Random) -> list[list[int]]:  # type: ignore[misc]  # a method instead of None
        """Put the word pieces of a view in random order, if it is `shuffle`."""
        edited = [list(pieces) for pieces in views]
        for pieces, kind in zip(edited, self.views, strict=False):
            if kind == "shuffle":
                draw.shuffle(pieces)
        return edited

    @property
    def cuts_off(self) -> bool:
        return any(kind.endswith("cutoff") for kind in self.views)

    @property
    def takes_three_views(self) -> bool:
        return not (self.cuts_off or self.in_view_negatives)  # both are defined for pairs

    @property
    def needs_whole_batch(self) -> str | None:
        if self.cuts_off:
            return "cut-offs (first_view, second_view) are drawn for the complete batch"
        return super().needs_whole_batch
