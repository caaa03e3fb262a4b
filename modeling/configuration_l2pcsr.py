"""L2P-CSR's configuration."""

from typing import Any

from .configuration_sentence_encoder import WEIGHT, SentenceEncoderConfig

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert")
WEAKENINGS = ("binary", "continuous", "noise")
TOKEN_UPDATES = ("l2", "sign")
FEATURE_MASK_SCOPES = ("row", "shared")


class L2PCSRConfig(SentenceEncoderConfig):
    """What is weakened, and how it is learned; the defaults are the paper's (appendix B).

    The released code differs from the paper. Its behaviour is `token_update="sign"`, `token_step_size=0.1`,
    `feature_step_size=0.1`, `feature_mask_scope="shared"`, `attend_padding=True`, and for RoBERTa
    `weakened_layers=2` (it draws a third mask there and never applies it). It compares with p > φ, the paper with
    p ≥ φ; they differ where p is φ to the last bit.

    Args:
        threshold: φ of eq. 1: what has a probability below it is weakened. 0 with `binary` weakening is SimCSE.
        token_step_size, feature_step_size: β of eq. 5 and 6; 0.5 in the paper, 0.1 in the release.
        token_update: `l2`, the gradient over a row's tokens divided by its norm (eq. 5), or `sign`, every token by
            the whole step: the release divides each token's gradient by its own absolute value.
        inner_steps: updates of the probabilities before the real one; the release's 4, the paper does not say. With
            0 the masks stay random, the paper's ablation "w/o learning to perturb".
        weakened_layers: k, the outputs weakened: the embedding layer's and those of the first k - 1 Transformer
            layers.
        feature_mask_scope: `row`, each view of each sentence has its own feature mask (paper), or `shared`, one for
            all rows and both views of the batch (release).
        attend_padding: whether padding is attended to while the views are made (release: its attention mask does not
            reach the encoder in training). `mean` and the other averaging poolings then count padding as well.
        token_mask, feature_mask: which masks there are (ablations, table 3). The paper does not say what the average
            of eq. 2 is when one is missing: here the missing one is all ones, so that the other still halves.
        weakening: `binary` masks; `continuous`, the probabilities themselves as multipliers ("Continual Mask"); or
            `noise`, learned noise added to the embedding layer's output ("Emb Noise"), which takes no notice of the
            keys above but `inner_steps` and `attend_padding`.
        noise_size: greatest L2 norm of that noise over a row's tokens and features. The paper gives none.

    Example:
        >>> L2PCSRConfig(token_update="sign", token_step_size=0.1).threshold
        0.05
    """

    model_type = "l2pcsr"
    allowed = {
        "threshold": "[0, 1]",
        "token_step_size": WEIGHT,
        "feature_step_size": WEIGHT,
        "token_update": TOKEN_UPDATES,
        "inner_steps": "[0, 10_000]",
        "weakened_layers": "[1, 1_000]",
        "feature_mask_scope": FEATURE_MASK_SCOPES,
        "weakening": WEAKENINGS,
        "noise_size": WEIGHT,
    }

    def __init__(
        self,
        threshold: float = 0.05,
        token_step_size: float = 0.5,
        feature_step_size: float = 0.5,
        token_update: str = "l2",
        inner_steps: int = 4,
        weakened_layers: int = 3,
        feature_mask_scope: str = "row",
        attend_padding: bool = False,
        token_mask: bool = True,
        feature_mask: bool = True,
        weakening: str = "binary",
        noise_size: float = 1.0,
        **kwargs: Any,
    ):
        self.threshold = threshold
        self.token_step_size = token_step_size
        self.feature_step_size = feature_step_size
        self.token_update = token_update
        self.inner_steps = inner_steps
        self.weakened_layers = weakened_layers
        self.feature_mask_scope = feature_mask_scope
        self.attend_padding = attend_padding
        self.token_mask = token_mask
        self.feature_mask = feature_mask
        self.weakening = weakening
        self.noise_size = noise_size
        super().__init__(**kwargs)

    def _check(self) -> None:
        super()._check()
        if (kind := self.backbone_config.model_type) not in FAMILIES:
            raise ValueError(f"l2pcsr weakens the layers of {', '.join(FAMILIES)}, not those of a {kind}")
        outputs = self.num_hidden_layers + 1
        if self.weakened_layers > outputs:
            raise ValueError(
                f"weakened_layers: {self.weakened_layers} must be at most {outputs}, this backbone's layers + 1"
            )
        if not (self.token_mask or self.feature_mask):
            raise ValueError("token_mask and feature_mask: false and false leave nothing to weaken, keep one of them")

    @property
    def learns_token_masks(self) -> bool:
        return self.token_mask and self.weakening != "noise"

    @property
    def needs_whole_batch(self) -> str | None:
        return "L2P-CSR learns its masks from the loss of the whole batch"
