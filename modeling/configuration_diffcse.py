"""DiffCSE's configuration."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from .configuration_sentence_encoder import WEIGHT, SentenceEncoderConfig
from .objectives import REDUCTIONS

CHOICES = {
    "rtd_reduction": REDUCTIONS,
    "condition_on": ("projection", "pooled"),
    "generator_sampling": ("argmax", "sample"),
    "generator_positions": ("all", "masked"),
    "edit": ("replace", "insert", "delete", "all"),
    "prediction": ("rtd", "masked_lm", "corrective_lm"),
    "predicted_sentence": ("same", "next", "both"),
    "edited_view": ("none", "positive", "negative"),
}


class DiffCSEConfig(SentenceEncoderConfig):
    """SimCSE's settings, and how a sentence is edited and what is learned from the difference.

    Args:
        projection: as in every method; the paper's projector is `batchnorm`, its ablation without is `tanh`.
        rtd_weight: λ of the conditional discriminator's loss; 0 leaves SimCSE.
        rtd_mask_ratio: share of tokens that an edit masks, of places where it inserts, or of tokens that it deletes.
            The paper's 0.30 is of BERT on STS; 0.20 and 0.15 are in the recipes, and its ablation of edits uses 0.15.
        rtd_reduction: see `objectives.replaced_token_detection`; λ = 0.005 belongs to `mean`.
        condition_on: the vector of the sentence that the discriminator reads, after the `projection` (what is
            contrasted) or as `pooled` (the release's option `before_mlp`).
        generator_sampling: the generator's best guess (`argmax`, the release), or a `sample` (the paper's abstract).
        generator_positions: whose guesses are taken: `all` tokens' (the release) or the `masked` ones' alone.
        generator_dropout: whether the frozen generator's dropout is on in training (the release, where it follows the
            training mode).
        generator_config: configuration (or its dict) of the generator, any masked language model of the backbone's
            vocabulary; filled in where a model is built, the backbone's own otherwise.
        edit: `replace` tokens, `insert` some, `delete` some, or `all` three (section 5, table 4).
        prediction: what the discriminator predicts: which tokens are edited (`rtd`), the masked tokens (`masked_lm`),
            or the original of every token (`corrective_lm`), section 5, table 3.
        predicted_sentence: whose edit it reads: the `same` sentence's that it is conditioned on, the `next` one's, or
            `both`. The latter need two text columns, a sentence and the one that follows it.
        edited_view: whether the edited sentence is also contrasted: as a `positive` or a hard `negative` (appendix B,
            table 15, where λ is 0).

    Raises:
        ValueError: a value outside its range or two that contradict each other.

    Example:
        >>> DiffCSEConfig().rtd_weight
        0.005
    """

    model_type = "diffcse"
    allowed = {**CHOICES, "rtd_weight": WEIGHT, "rtd_mask_ratio": "[0, 1]"}

    def __init__(
        self,
        projection: str = "batchnorm",
        rtd_weight: float = 0.005,
        rtd_mask_ratio: float = 0.30,
        rtd_reduction: str = "mean",
        condition_on: str = "projection",
        generator_sampling: str = "argmax",
        generator_positions: str = "all",
        generator_dropout: bool = True,
        generator_config: PretrainedConfig | dict | None = None,
        edit: str = "replace",
        prediction: str = "rtd",
        predicted_sentence: str = "same",
        edited_view: str = "none",
        **kwargs: Any,
    ):
        if isinstance(generator_config, dict):
            generator_config = AutoConfig.for_model(**generator_config)
        self.rtd_weight = rtd_weight
        self.rtd_mask_ratio = rtd_mask_ratio
        self.rtd_reduction = rtd_reduction
        self.condition_on = condition_on
        self.generator_sampling = generator_sampling
        self.generator_positions = generator_positions
        self.generator_dropout = generator_dropout
        self.generator_config = generator_config
        self.edit = edit
        self.prediction = prediction
        self.predicted_sentence = predicted_sentence
        self.edited_view = edited_view
        super().__init__(projection=projection, **kwargs)

    def _check(self) -> None:
        super()._check()
        if self.prediction != "rtd" and self.edit != "replace":
            raise ValueError(f"prediction: {self.prediction} recovers replaced tokens, it needs edit: replace")
        # No sentences need no tokenizer.
        if (self.edited_view != "none" or self.predicted_sentence != "same") and self.text_prefixes([], None):  # type: ignore[arg-type]
            raise ValueError(
                "edited_view, predicted_sentence: another method makes the texts of the views, leave them out"
            )
        embedding_size = self.backbone_config.to_dict().get("embedding_size", self.hidden_size)
        if self.rtd_weight > 0 and embedding_size != self.hidden_size:
            raise ValueError(
                f"diffcse puts a sentence vector of {self.hidden_size} numbers among embeddings of {embedding_size}: "
                "this backbone's do not fit"
            )
        if self.edited_view != "none" and self.edit == "all":
            raise ValueError("edited_view: one edit makes a view, choose edit: replace, insert or delete")
        if self.edited_view != "none" and self.predicted_sentence != "same":
            raise ValueError("edited_view: the third view is the next sentence, give predicted_sentence: same")
        if self.rtd_weight > 0 and self.projection == "gelu" and self.condition_on == "projection":
            raise ValueError("projection: gelu is too wide to condition on, give condition_on: pooled")

    @property
    def sub_configs(self) -> dict[str, type]:  # type: ignore[override]  # an attribute of the class there
        """Configurations inside this one; transformers 4 would look into one that is not there."""
        there = {"generator_config": AutoConfig} if self.generator_config else {}
        return super().sub_configs | there

    @property
    def edits(self) -> tuple[str, ...]:
        """The edits that the discriminator learns from."""
        return ("replace", "insert", "delete") if self.edit == "all" else (self.edit,)

    @property
    def needs_generator(self) -> bool:
        read = self.rtd_weight > 0 and self.prediction != "masked_lm"
        return (read or self.edited_view != "none") and self.edit != "delete"

    @property
    def encoded_views(self) -> int | None:
        return None if self.predicted_sentence == "same" else 2

    def view_columns(self, columns: int) -> list[int]:
        if self.edited_view != "none" and columns > 2:
            raise ValueError(f"edited_view: it is the third view, give one or two text columns, not {columns}")
        if self.predicted_sentence == "same":
            return super().view_columns(columns)
        if columns != 2:
            raise ValueError(
                f"predicted_sentence: {self.predicted_sentence} needs two text columns, a sentence and the one that "
                f"follows it, not {columns}"
            )
        return [0, 0, 1]
