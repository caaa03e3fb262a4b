"""Configuration of ConSERT."""

from random import Random
from typing import Any

from ...contrastive.configuration import POOLING_MODES, SentenceEncoderConfig

VIEWS = ("none", "shuffle", "token_cutoff", "feature_cutoff")
# Poolings that read one token, or look for one.
OF_A_PLACE = ("cls", "last", "prompt")


class ConSERTConfig(SentenceEncoderConfig):
    """The configuration of a ConSERT model.

    Args:
        first_view, second_view: how each copy of a sentence is changed (paper, section 3.2). `shuffle` puts its word
            pieces in random order, `token_cutoff` sets the embeddings of some tokens to zero, `feature_cutoff` sets
            some features of all its embeddings to zero.
        shuffle_special_tokens: whether `shuffle` moves [CLS] and [SEP] too, as the release does; the paper does not
            say. If pooling reads one token, special tokens always keep their places.
        cutoff_rate: share of the tokens or features that are cut off: 0.2 for features in the release.
        in_view_negatives: use the other sentences of both views as negatives, as NT-Xent does (eq. 1). Otherwise only
            those of the other view, as in SimCSE.
        training_pooling: a pooling for training, if it is another one than at test. The release trains with the `mean`
            of the last layer and tests with `last2_mean`; the paper names only the latter. By default it is `pooling`.
        temperature: τ; 0.1 in the paper.

    Example:
        >>> ConSERTConfig(second_view="none").edit_sentence([[1, 2, 3], [1, 2, 3]], Random(0))
        [[1, 2, 3], [1, 2, 3]]
    """

    model_type = "consert"
    allowed = {
        "first_view": VIEWS,
        "second_view": VIEWS,
        "cutoff_rate": "[0, 1)",
        "training_pooling": tuple(mode for mode in POOLING_MODES if mode != "prompt"),
    }

    def __init__(
        self,
        first_view: str = "feature_cutoff",
        second_view: str = "shuffle",
        cutoff_rate: float = 0.2,
        shuffle_special_tokens: bool = True,
        in_view_negatives: bool = True,
        training_pooling: str | None = None,
        temperature: float = 0.1,
        **kwargs: Any,
    ):
        self.first_view = first_view
        self.second_view = second_view
        self.cutoff_rate = cutoff_rate
        self.shuffle_special_tokens = shuffle_special_tokens
        self.training_pooling = training_pooling
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
    def edits_special_tokens(self) -> bool:
        return self.shuffle_special_tokens and (self.training_pooling or self.pooling) not in OF_A_PLACE

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
