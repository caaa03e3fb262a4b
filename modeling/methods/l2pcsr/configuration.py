"""L2P-CSR's configuration."""

from typing import Any

from ...contrastive.allowed_values import WEIGHT
from ...contrastive.configuration import SentenceEncoderConfig

WEAKENINGS = ("binary", "continuous", "noise")
TOKEN_UPDATES = ("l2", "sign")
FEATURE_MASK_SCOPES = ("row", "shared")


class L2PCSRConfig(SentenceEncoderConfig):
    """The configuration of L2P-CSR: what is weakened, and how the masks are learned. Defaults are the paper's.

    The paper's hyperparameters are in its appendix B. The released code differs from the paper. To follow the release,
    set `token_update="sign"`, `token_step_size=0.1`, `feature_step_size=0.1`, `feature_mask_scope="shared"`,
    `attend_padding=True`, and for RoBERTa `weakened_layers=2` (it draws a third mask and never applies it). The
    release compares p > φ, the paper p ≥ φ; they differ only if p equals φ to the last bit.

    Args:
        threshold: φ of eq. 1; tokens and features with a probability below it are weakened. 0 with `binary` weakening
            is SimCSE.
        token_step_size, feature_step_size: step size β of eq. 5 and 6; 0.5 in the paper, 0.1 in the release.
        token_update: `l2` divides the gradient over a row's tokens by its norm (eq. 5). `sign` moves every token by
            the full step, because the release divides each token's gradient by its absolute value.
        inner_steps: updates of the masks before each update of the model; 4 in the release, not stated in the paper.
            With 0 the masks stay random, the paper's ablation "w/o learning to perturb".
        weakened_layers: k, how many outputs are weakened: those of the embedding layer and of the first k - 1
            Transformer layers.
        feature_mask_scope: `row` has a feature mask for each view of each sentence (paper), `shared` one for all rows
            and views of the batch (release).
        attend_padding: attend to padding while the views are made (release: its attention mask does not reach the
            encoder in training). `mean` and the other averaging poolings then count padding too.
        token_mask, feature_mask: whether to use this mask (ablations, table 3). The paper does not define the average
            of eq. 2 with a single mask. Here the missing mask is all ones, so the other one still halves what it
            weakens.
        weakening: `binary` masks; `continuous`, the probabilities as multipliers ("Continual Mask"); or `noise`,
            learned noise added to the embedding layer's output ("Emb Noise"). `noise` uses only `inner_steps`,
            `attend_padding` and `noise_size`.
        noise_size: largest L2 norm of the learned noise over a row's tokens and features. The paper states none.

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

    def check(self) -> None:
        super().check()
        outputs = self.num_hidden_layers + 1
        if self.weakened_layers > outputs:
            raise ValueError(
                f"weakened_layers: {self.weakened_layers} must be at most {outputs}, the backbone's layers + 1"
            )
        if not (self.token_mask or self.feature_mask):
            raise ValueError("token_mask, feature_mask: if both are false, nothing is weakened; set one to true")

    @property
    def passes_per_text(self) -> float:
        return super().passes_per_text + self.inner_steps

    @property
    def learns_token_masks(self) -> bool:
        return self.token_mask and self.weakening != "noise"

    @property
    def needs_whole_batch(self) -> str | None:
        return "L2P-CSR learns its masks from the loss of the complete batch"
