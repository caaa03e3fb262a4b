"""DiffCSE's configuration."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from ...contrastive.allowed_values import WEIGHT
from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.keys import key
from ...objectives import REDUCTIONS


class DiffCSEConfig(SentenceEncoderConfig):
    """The configuration of DiffCSE: how sentences are edited, and what is learned from the difference.

    Raises:
        ValueError: a value is outside its range, or two values contradict each other.

    Example:
        >>> DiffCSEConfig().rtd_weight
        0.005
    """

    model_type = "diffcse"
    sub_configs = {"backbone_config": AutoConfig, "generator_config": AutoConfig}

    projection: str = key(
        "batchnorm", "As in every method. The paper uses `batchnorm`; `tanh` (SimCSE's MLP) is its ablation."
    )
    rtd_weight: float = key(0.005, "λ, the weight of the discriminator's loss; 0 is SimCSE.", WEIGHT)
    rtd_mask_ratio: float = key(
        0.30,
        "Share of tokens that an edit masks or deletes, or of places where it inserts. The paper uses 0.30 for BERT "
        "on STS, 0.20 and 0.15 in other settings (see the recipes), 0.15 in its ablation of edits.",
        "[0, 1]",
    )
    rtd_reduction: str = key(
        "mean",
        "How the discriminator's loss is averaged or summed, see `objectives.replaced_token_detection`; λ = 0.005 was "
        "chosen for `mean`.",
        REDUCTIONS,
    )
    condition_on: str = key(
        "projection",
        "The sentence vector that the discriminator reads: after the `projection`, as in the contrastive loss, or "
        "`pooled`, before it (the release's option `before_mlp`).",
        ("projection", "pooled"),
    )
    generator_sampling: str = key(
        "argmax",
        "Replace tokens by the generator's best guess (`argmax`, the release) or by a `sample` (the paper's "
        "abstract).",
        ("argmax", "sample"),
    )
    generator_positions: str = key(
        "all", "Replace `all` tokens by the generator's (the release), or only the `masked` ones.", ("all", "masked")
    )
    generator_dropout: bool = key(True, "Keep the dropout of the frozen generator on in training, as in the release.")
    generator_config: PretrainedConfig | None = key(
        None,
        "Configuration (or its dict) of the generator, any masked language model with the backbone's vocabulary; set "
        "when a model is built, by default the backbone's.",
        in_recipes=False,
    )
    edit: str = key(
        "replace",
        "`replace` tokens, `insert` some, `delete` some, or `all` three (section 5, table 4).",
        ("replace", "insert", "delete", "all"),
    )
    prediction: str = key(
        "rtd",
        "What the discriminator predicts: which tokens are edited (`rtd`), the masked tokens (`masked_lm`), or the "
        "original of every token (`corrective_lm`), section 5, table 3.",
        ("rtd", "masked_lm", "corrective_lm"),
    )
    predicted_sentence: str = key(
        "same",
        "The sentence whose edit the discriminator reads: the `same` one that the vector encodes, the `next` one, or "
        "`both`. `next` and `both` need two text columns, a sentence and the one after it.",
        ("same", "next", "both"),
    )
    edited_view: str = key(
        "none",
        "Also use the edited sentence in the contrastive loss, as a `positive` or a hard `negative` (appendix B, "
        "table 15, with λ = 0).",
        ("none", "positive", "negative"),
    )

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.generator_config, dict):
            self.generator_config = AutoConfig.for_model(**self.generator_config)
        super().__post_init__(**kwargs)

    def check(self) -> None:
        super().check()
        if self.pooled_size != self.hidden_size:
            raise ValueError(
                f"base_model: its layers make {self.pooled_size} dimensions of {self.hidden_size}, but the "
                "discriminator of diffcse reads as many as a token has; choose another method"
            )
        if self.prediction != "rtd" and self.edit != "replace":
            raise ValueError(f"prediction: {self.prediction} needs edit: replace, got {self.edit}")
        # The tokenizer may be None because there are no sentences.
        if (self.edited_view != "none" or self.predicted_sentence != "same") and self.text_prefixes([], None):  # type: ignore[arg-type]
            raise ValueError(
                "edited_view, predicted_sentence: another method makes the texts of the views; leave both out"
            )
        if self.edited_view != "none" and not self.takes_three_views:
            raise ValueError(f"edited_view: {self.model_type} takes two views of a sentence; set edited_view: none")
        if self.edited_view != "none" and self.edit == "all":
            raise ValueError("edited_view: it needs a single edit; set edit: replace, insert or delete")
        if self.edited_view != "none" and self.predicted_sentence != "same":
            raise ValueError("edited_view: the third view would be the next sentence; set predicted_sentence: same")
        if self.rtd_weight > 0 and self.projection == "gelu" and self.condition_on == "projection":
            raise ValueError("projection: gelu is too wide for the discriminator; set condition_on: pooled")

    @property
    def edits(self) -> tuple[str, ...]:
        """The edits that the discriminator learns from."""
        return ("replace", "insert", "delete") if self.edit == "all" else (self.edit,)

    @property
    def needs_generator(self) -> bool:
        read = self.rtd_weight > 0 and self.prediction != "masked_lm"
        return (read or self.edited_view != "none") and self.edit != "delete"

    @property
    def passes_per_text(self) -> float:
        discriminator, generator = 1 / 2, 1 / 2 * 1 / 2 * 1 / 3  # of one text of two; half the layers, forward alone
        return super().passes_per_text + discriminator + (generator if self.needs_generator else 0)

    @property
    def encoders_in_training(self) -> tuple[int, int]:
        trained, frozen = super().encoders_in_training
        return trained + 1, frozen  # the discriminator

    @property
    def encoded_views(self) -> int | None:
        return None if self.predicted_sentence == "same" else 2

    def view_columns(self, columns: int) -> list[int]:
        if self.edited_view != "none" and columns > 2:
            raise ValueError(
                f"edited_view: it adds the edited sentence as third view; give one or two text columns, not {columns}"
            )
        if self.predicted_sentence == "same":
            return super().view_columns(columns)
        if columns != 2:
            raise ValueError(
                f"predicted_sentence: {self.predicted_sentence} needs two text columns (a sentence and the one after "
                f"it), not {columns}"
            )
        return [0, 0, 1]
