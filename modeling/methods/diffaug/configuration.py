"""DiffAug's configuration."""

from typing import Any

from ...contrastive.allowed_values import SIZE, WEIGHT
from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.keys import key


class DiffAugConfig(SentenceEncoderConfig):
    """The configuration of DiffAug: the modules that make the views differ, and what each stage trains.

    Raises:
        ValueError: a value is outside its range.

    Example:
        >>> DiffAugConfig().prefix_positions
        16
    """

    model_type = "diffaug"

    views_module: str = key(
        "prefix",
        "`prefix` (key/value prefixes in every layer), `lora` (on the query and value projections) or `adapter` "
        "(after attention and feed-forward network).",
        ("prefix", "lora", "adapter"),
    )
    views_mode: str = key(
        "different", "`different` modules for the two views, or the `same` for both.", ("different", "same")
    )
    prefix_length: int = key(
        8, "l, the number of slots in the prefix of each view; 0 has no prefixes and is SimCSE.", "[0, 4_096]"
    )
    reparametrisation: bool = key(
        True, "Compute the prefixes from a small table by an MLP (true), or train them directly (false)."
    )
    prefix_dropout: float | None = key(
        None,
        "Dropout on the prefixes in training, different for every row; by default the backbone's (0.1).",
        "[0, 1)",
    )
    bottleneck: int = key(
        4, "Size r of `lora` and `adapter`; the paper tries 4 (as many parameters as its prefixes) and 64.", SIZE
    )
    lora_scale: float = key(1.0, "Factor s of `lora`; the paper says only that it is at least 1.", WEIGHT)
    freeze_views: bool = key(False, "Do not train the modules after the stage on labelled pairs.")
    freeze_backbone: bool = key(False, "Do not train the language model in either stage.")
    denoise_length_offset: int | None = key(
        None,
        "Added to a sentence's length when the template's bias is looked up. The default is l, as in the release, "
        "which counts the prefix as part of the sentence; 0 is exact.",
        "[0, 100_000]",
    )
    nli_classes: int = key(2, "As in every method; by default 2, for entailed and contradicted hypotheses.")

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
    def reason_for_labelled_pairs(self) -> str | None:
        frozen = "freeze_views: without a stage on labelled pairs the modules would stay random"
        return frozen if self.freeze_views else super().reason_for_labelled_pairs

    @property
    def reason_for_own_code(self) -> str | None:
        if self.prefix_positions:
            return "its prefixes are keys and values in every attention layer, which a plain encoder does not have"
        if self.views_module == "adapter":
            return "its adapters are inside every layer, and a plain encoder has none"
        return super().reason_for_own_code

    @property
    def bias_length_offset(self) -> int:
        return self.prefix_positions // 2 if self.denoise_length_offset is None else self.denoise_length_offset
