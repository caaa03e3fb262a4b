"""SG-OPT's configuration."""

from typing import Any

from ...contrastive.allowed_values import WEIGHT
from ...contrastive.configuration import SentenceEncoderConfig


class SGOPTConfig(SentenceEncoderConfig):
    """The configuration of SG-OPT: guidance by the layers of a frozen twin.

    Args:
        variant: the loss: `opt3` (SG-OPT), `base` (SG), `opt1` or `opt2`, see `objectives.self_guided`.
        guide: what makes the views: the frozen `twin`, or (`self`) the tuned encoder, from the second text column.
            `self` with a column of back-translations and `variant: base` is the paper's contrastive BT baseline.
        view_pooling: pooling over the tokens of a layer: `max` (paper) or `mean` (the release's default argument).
            Like the other keys of views and twin, it has no effect with `guide: self`.
        first_view_layer, last_view_layer: first and last of the layers that make views, by default all; 0 is the
            embedding layer's output.
        twin_dropout: use dropout in the twin in training. The release puts the twin into training mode by accident;
            `false` is what the paper's "fixed" suggests.
        freeze_embeddings: do not train the tuned encoder's embedding layer (footnote 5).
        regularizer_weight: λ, the weight of the distance between the two encoders, see
            `objectives.parameter_distance`. The release's sum includes the poolers, which get no other gradient and
            only change the norm that is clipped. These encoders have no poolers.
        projection: `gelu`, Linear-GELU-Linear-GELU of width `projection_size`, for embeddings and views.
        temperature: τ, 0.01 in the paper.

    Example:
        >>> SGOPTConfig(first_view_layer=4).view_layers
        range(4, 13)
    """

    model_type = "sgopt"
    allowed = {
        "variant": ("base", "opt1", "opt2", "opt3"),
        "guide": ("twin", "self"),
        "view_pooling": ("max", "mean"),
        "first_view_layer": "[0, 1_000]",
        "last_view_layer": "[0, 1_000]",
        "regularizer_weight": WEIGHT,
    }

    def __init__(
        self,
        variant: str = "opt3",
        guide: str = "twin",
        view_pooling: str = "max",
        first_view_layer: int = 0,
        last_view_layer: int | None = None,
        twin_dropout: bool = True,
        freeze_embeddings: bool = True,
        regularizer_weight: float = 0.1,
        projection: str = "gelu",
        temperature: float = 0.01,
        **kwargs: Any,
    ):
        self.variant = variant
        self.guide = guide
        self.view_pooling = view_pooling
        self.first_view_layer = first_view_layer
        self.last_view_layer = last_view_layer
        self.twin_dropout = twin_dropout
        self.freeze_embeddings = freeze_embeddings
        self.regularizer_weight = regularizer_weight
        super().__init__(projection=projection, temperature=temperature, **kwargs)

    def check(self) -> None:
        super().check()
        if not self.view_layers or self.view_layers[-1] > self.num_hidden_layers:
            raise ValueError(
                f"first_view_layer, last_view_layer: {self.first_view_layer}, {self.last_view_layer} must be a range "
                f"of layers between 0 and {self.num_hidden_layers}"
            )
        if self.hard_negative_weight != 0:
            raise ValueError("hard_negative_weight: sgopt has no hard negatives; set it to 0")
        if self.lora_rank and self.regularizer_weight > 0:
            raise ValueError(
                "regularizer_weight: with lora_rank the encoder's weights stay equal to the twin's; set it to 0"
            )

    @property
    def view_layers(self) -> range:
        """The layers whose outputs are views."""
        last = self.num_hidden_layers if self.last_view_layer is None else self.last_view_layer
        return range(self.first_view_layer, last + 1)

    @property
    def has_twin(self) -> bool:
        return self.guide == "twin" or self.regularizer_weight > 0

    @property
    def passes_per_text(self) -> float:
        return super().passes_per_text + (1 / 3 if self.guide == "twin" else 0)

    @property
    def encoders_in_training(self) -> tuple[int, int]:
        trained, frozen = super().encoders_in_training
        return trained, frozen + self.has_twin

    @property
    def takes_three_views(self) -> bool:
        return False

    def view_columns(self, columns: int) -> list[int]:
        """Return the columns of the sentence and of its guide: the twin reads the sentence or the second column."""
        if columns == 1 and self.guide == "twin":
            return [0]
        return super().view_columns(columns)
