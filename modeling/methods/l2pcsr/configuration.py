"""L2P-CSR's configuration."""

from ...contrastive.allowed_values import WEIGHT
from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.keys import key

STEP_SIZE = "Step size β of eq. 5 and 6; 0.5 in the paper, 0.1 in the release."
MASK = (
    "Whether to use this mask (ablations, table 3). The paper does not define the average of eq. 2 with a single "
    "mask. Here the missing mask is all ones, so the other one still halves what it weakens."
)


class L2PCSRConfig(SentenceEncoderConfig):
    """The configuration of L2P-CSR: what is weakened, and how the masks are learned. Defaults are the paper's.

    The paper's hyperparameters are in its appendix B. The released code differs from the paper. To follow the release,
    set `token_update="sign"`, `token_step_size=0.1`, `feature_step_size=0.1`, `feature_mask_scope="shared"`,
    `attend_padding=True`, and for RoBERTa `weakened_layers=2` (it draws a third mask and never applies it). The
    release compares p > φ, the paper p ≥ φ; they differ only if p equals φ to the last bit.

    Example:
        >>> L2PCSRConfig(token_update="sign", token_step_size=0.1).threshold
        0.05
    """

    model_type = "l2pcsr"

    threshold: float = key(
        0.05,
        "φ of eq. 1; tokens and features with a probability below it are weakened. 0 with `binary` weakening is "
        "SimCSE.",
        "[0, 1]",
    )
    token_step_size: float = key(0.5, STEP_SIZE, WEIGHT)
    feature_step_size: float = key(0.5, STEP_SIZE, WEIGHT)
    token_update: str = key(
        "l2",
        "`l2` divides the gradient over a row's tokens by its norm (eq. 5). `sign` moves every token by the full "
        "step, because the release divides each token's gradient by its absolute value.",
        ("l2", "sign"),
    )
    inner_steps: int = key(
        4,
        "Updates of the masks before each update of the model; 4 in the release, not stated in the paper. With 0 the "
        'masks stay random, the paper\'s ablation "w/o learning to perturb".',
        "[0, 10_000]",
    )
    weakened_layers: int = key(
        3,
        "k, how many outputs are weakened: those of the embedding layer and of the first k - 1 Transformer layers.",
        "[1, 1_000]",
    )
    feature_mask_scope: str = key(
        "row",
        "`row` has a feature mask for each view of each sentence (paper), `shared` one for all rows and views of the "
        "batch (release).",
        ("row", "shared"),
    )
    attend_padding: bool = key(
        False,
        "Attend to padding while the views are made (release: its attention mask does not reach the encoder in "
        "training). `mean` and the other averaging poolings then count padding too.",
    )
    token_mask: bool = key(True, MASK)
    feature_mask: bool = key(True, MASK)
    weakening: str = key(
        "binary",
        '`binary` masks; `continuous`, the probabilities as multipliers ("Continual Mask"); or `noise`, learned noise '
        'added to the embedding layer\'s output ("Emb Noise"). `noise` uses only `inner_steps`, `attend_padding` and '
        "`noise_size`.",
        ("binary", "continuous", "noise"),
    )
    noise_size: float = key(
        1.0, "Largest L2 norm of the learned noise over a row's tokens and features. The paper states none.", WEIGHT
    )

    reason_for_whole_batch = "L2P-CSR learns its masks from the loss of the complete batch"

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
