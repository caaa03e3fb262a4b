"""Configuration of Contrastive Tension."""

from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.keys import key


class ContrastiveTensionConfig(SentenceEncoderConfig):
    """The configuration of Contrastive Tension, with the paper's pooling. `temperature` has no effect.

    Example:
        >>> ContrastiveTensionConfig().pooling
        'mean'
    """

    model_type = "contrastive_tension"

    negatives: int = key(
        7,
        "K, negative pairs for each positive pair; fewer if a batch has fewer other sentences. 7 in the paper.",
        "[1, 1_000_000]",
    )
    negative_pairs: str = key(
        "others",
        "What a negative pair is. `others` pairs two sentences that are in no other pair of the batch, as the release "
        "does: of 1 + 2K sentences, one makes a positive pair and the others K negative ones. `own` pairs each "
        "sentence with the next K of its batch, near the paper's pairs of one sentence with K others; then every "
        "sentence is in a positive pair.",
        ("others", "own"),
    )
    pooling: str = key("mean")
    projection: str = key("none")

    takes_three_views = False  # one for each encoder
    views_part_in_training = True  # each encoder has its own weights
    reason_for_whole_batch = (
        "Contrastive Tension needs the gradients of two encoders, which mini-batches do not compute"
    )

    def check(self) -> None:
        super().check()
        if self.denoise != "none":
            raise ValueError("denoise: contrastive_tension has two encoders with different biases; set denoise: none")
        if self.lora_rank:  # its updates are of the served encoder; the other one would be trained completely
            raise ValueError("lora_rank: contrastive_tension trains two encoders, LoRA only one; set lora_rank: 0")
        least = 3 if self.negative_pairs == "others" else 2
        if self.batch_size is not None and self.batch_size < least:
            raise ValueError(f"batch_size: {self.batch_size} sentences make no negative pair; give {least} or more")

    @property
    def encoders_in_training(self) -> tuple[int, int]:
        return 2, super().encoders_in_training[1]
