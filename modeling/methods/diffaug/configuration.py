"""DiffAug's configuration."""

from typing import Any

from ...contrastive.allowed_values import SIZE, WEIGHT
from ...contrastive.configuration import SentenceEncoderConfig

VIEWS_MODULES = ("prefix", "lora", "adapter")
VIEWS_MODES = ("different", "same")


class DiffAugConfig(SentenceEncoderConfig):
    """The configuration of DiffAug: the modules that make the views differ, and what each stage trains.

    Args:
        views_module: `prefix` (key/value prefixes in every layer), `lora` (on the query and value projections) or
            `adapter` (after attention and feed-forward network).
        views_mode: `different` modules for the two views, or the `same` for both.
        prefix_length: l, the number of slots in the prefix of each view; 0 has no prefixes and is SimCSE.
        reparametrisation: compute the prefixes from a small table by an MLP (true), or train them directly (false).
        prefix_dropout: dropout on the prefixes in training, different for every row; by default the backbone's (0.1).
        bottleneck: size r of `lora` and `adapter`; the paper tries 4 (as many parameters as its prefixes) and 64.
        lora_scale: factor s of `lora`; the paper says only that it is at least 1.
        freeze_views: do not train the modules after the stage on labelled pairs.
        freeze_backbone: do not train the language model in either stage.
        denoise_length_offset: added to a sentence's length when the template's bias is looked up. The default is l, as
            in the release, which counts the prefix as part of the sentence; 0 is exact.
        nli_classes: as in every method; by default 2, for entailed and contradicted hypotheses.

    Raises:
        ValueError: a value is outside its range.

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

    @classmethod
    def published_keys(cls, csezoo: dict[str, Any]) -> dict[str, Any]:
        keys = super().published_keys(csezoo) | {"prefix_length": csezoo.get("prefix_positions", 0) // 2}
        if "denoise" in csezoo:
            keys["denoise_length_offset"] = 0
        if "adapters" in csezoo:  # one set, which has the mean of both
            keys |= {"views_module": "adapter", "views_mode": "same", "bottleneck": csezoo["adapters"]["size"]}
        return keys

    def check(self) -> None:
        super().check()
        if self.denoise == "always" and self.bias_length_offset:
            raise ValueError(
                "denoise: always needs denoise_length_offset: 0 (the release adds an offset only in training)"
            )

    @property
    def prefix_positions(self) -> int:
        """Return 2l: the real tokens come after the prefixes of both views, although a view sees only one of them."""
        return 2 * self.prefix_length if self.views_module == "prefix" else 0

    @property
    def views_part_in_training(self) -> bool:
        own = self.views_mode == "different" and self.views_module != "prefix"  # they start at zero; prefixes do not
        return own or super().views_part_in_training

    @property
    def needs_labelled_pairs(self) -> str | None:
        frozen = "freeze_views: without a stage on labelled pairs the modules would stay random"
        return frozen if self.freeze_views else super().needs_labelled_pairs

    @property
    def needs_own_code(self) -> str | None:
        if self.prefix_positions:
            return "its prefixes are keys and values in every attention layer, which a plain encoder does not have"
        if self.views_module == "adapter":
            return "its adapters are inside every layer, and a plain encoder has none"
        return super().needs_own_code

    @property
    def bias_length_offset(self) -> int:
        return self.prefix_positions // 2 if self.denoise_length_offset is None else self.denoise_length_offset
