"""DiffAug's configuration."""

from typing import Any

from .configuration_sentence_encoder import SIZE, WEIGHT, SentenceEncoderConfig

VIEWS_MODULES = ("prefix", "lora", "adapter")
VIEWS_MODES = ("different", "same")


class DiffAugConfig(SentenceEncoderConfig):
    """Modules that tell the views of a sentence apart, and what is trained of the model in which stage.

    Args:
        views_module: `prefix`, key/value prefixes in every layer; or, in their place, `lora` on the query and value
            projections, `adapter` after attention and feed-forward network.
        views_mode: `different` modules for the two views, or the `same` for both.
        prefix_length: slots l of a view's prefix; 0 for none, which is SimCSE.
        reparametrisation: train the prefixes as a small table behind an MLP, or as they are.
        prefix_dropout: of the prefixes in training, drawn for every row; by default the backbone's own (0.1).
        bottleneck: r of `lora` and `adapter`; the paper tries 4 (as many parameters as its prefixes) and 64.
        lora_scale: s of `lora`, at least 1 in the paper, which gives no value.
        freeze_views: leave the modules as the stage on labelled pairs has made them.
        freeze_backbone: leave the language model as it was pre-trained, in both stages.
        denoise_length_offset: added to a sentence's length where the template's bias is looked up. By default l, as in
            the release, which counts the prefix as part of the sentence; 0 is exact.
        nli_classes: see `SentenceEncoderConfig`; entailed and contradicted hypotheses here.

    Raises:
        ValueError: a value outside its range.

    Example:
        >>> DiffAugConfig().prefix_positions
        16
    """

    model_type = "diffaug"
    allowed = {
        "views_module": VIEWS_MODULES,
        "views_mode": VIEWS_MODES,
        "prefix_length": "[0, 4_096]",
        "prefix_dropout": "[0, 1)",
        "bottleneck": SIZE,
        "lora_scale": WEIGHT,
        "denoise_length_offset": "[0, 100_000]",
    }

    def __init__(
        self,
        views_module: str = "prefix",
        views_mode: str = "different",
        prefix_length: int = 8,
        reparametrisation: bool = True,
        prefix_dropout: float | None = None,
        bottleneck: int = 4,
        lora_scale: float = 1.0,
        freeze_views: bool = False,
        freeze_backbone: bool = False,
        denoise_length_offset: int | None = None,
        nli_classes: int = 2,
        **kwargs: Any,
    ):
        self.views_module = views_module
        self.views_mode = views_mode
        self.prefix_length = prefix_length
        self.reparametrisation = reparametrisation
        self.prefix_dropout = prefix_dropout
        self.bottleneck = bottleneck
        self.lora_scale = lora_scale
        self.freeze_views = freeze_views
        self.freeze_backbone = freeze_backbone
        self.denoise_length_offset = denoise_length_offset
        super().__init__(nli_classes=nli_classes, **kwargs)

    def _check(self) -> None:
        super()._check()
        if self.denoise == "always" and self.bias_length_offset:
            raise ValueError("denoise: always needs denoise_length_offset: 0, the release shifts it in training alone")

    @property
    def prefix_positions(self) -> int:
        """2l: real tokens stand after the prefixes of both views, of which a view sees one."""
        return 2 * self.prefix_length if self.views_module == "prefix" else 0

    @property
    def needs_labelled_pairs(self) -> str | None:
        frozen = "freeze_views: they would stay as they were drawn"
        return frozen if self.freeze_views else super().needs_labelled_pairs

    @property
    def needs_own_code(self) -> str | None:
        if self.prefix_positions:
            return "its prefixes are keys and values in every attention layer, for which a plain encoder has no place"
        if self.views_module == "adapter":
            return "its adapters stand inside every layer, where a plain encoder has none"
        return super().needs_own_code

    @property
    def bias_length_offset(self) -> int:
        return self.prefix_positions // 2 if self.denoise_length_offset is None else self.denoise_length_offset
