"""SG-OPT's configuration."""

from ...contrastive.allowed_values import WEIGHT
from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.keys import key

VIEW_LAYERS = "First and last of the layers that make views, by default all; 0 is the embedding layer's output."


class SGOPTConfig(SentenceEncoderConfig):
    """The configuration of SG-OPT: guidance by the layers of a frozen twin.

    Example:
        >>> SGOPTConfig(first_view_layer=4).view_layers
        range(4, 13)
    """

    model_type = "sgopt"

    variant: str = key(
        "opt3",
        "The loss: `opt3` (SG-OPT), `base` (SG), `opt1` or `opt2`, see `objectives.self_guided`.",
        ("base", "opt1", "opt2", "opt3"),
    )
    guide: str = key(
        "twin",
        "What makes the views: the frozen `twin`, or (`self`) the tuned encoder, from the second text column. `self` "
        "with a column of back-translations and `variant: base` is the paper's contrastive BT baseline.",
        ("twin", "self"),
    )
    view_pooling: str = key(
        "max",
        "Pooling over the tokens of a layer: `max` (paper) or `mean` (the release's default argument). Like the other "
        "keys of views and twin, it has no effect with `guide: self`.",
        ("max", "mean"),
    )
    first_view_layer: int = key(0, VIEW_LAYERS, "[0, 1_000]")
    last_view_layer: int | None = key(None, VIEW_LAYERS, "[0, 1_000]")
    twin_dropout: bool = key(
        True,
        "Use dropout in the twin in training. The release puts the twin into training mode by accident; `false` is "
        'what the paper\'s "fixed" suggests.',
    )
    freeze_embeddings: bool = key(True, "Do not train the tuned encoder's embedding layer (footnote 5).")
    regularizer_weight: float = key(
        0.1,
        "λ, the weight of the distance between the two encoders, see `objectives.parameter_distance`. The release's "
        "sum includes the poolers, which get no other gradient and only change the norm that is clipped. These "
        "encoders have no poolers.",
        WEIGHT,
    )
    projection: str = key(
        "gelu", "`gelu`, Linear-GELU-Linear-GELU of width `projection_size`, for embeddings and views."
    )
    temperature: float = key(0.01, "τ, 0.01 in the paper.")

    takes_three_views = False

    def check(self) -> None:
        super().check()
        if not self.view_layers or self.view_layers[-1] > self.num_hidden_layers:
            raise ValueError(
                f"first_view_layer, last_view_layer: {self.first_view_layer}, {self.last_view_layer} must be a range "
                f"of layers between 0 and {self.num_hidden_layers}"
            )
        if self.base_layers:
            kinds = " - ".join(layer["type"] for layer in self.base_layers)
            raise ValueError(
                f"base_model: it has {kinds} after its pooling, which the views of sgopt (layers of the encoder) do "
                "not pass; choose another method"
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

    def view_columns(self, columns: int) -> list[int]:
        """Return the columns of the sentence and of its guide: the twin reads the sentence or the second column."""
        if columns == 1 and self.guide == "twin":
            return [0]
        return super().view_columns(columns)
