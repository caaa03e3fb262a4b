"""`for_training`: a training model and its collator, for `transformers.Trainer` or a loop of your own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from csezoo.modeling import SentenceEncoderConfig
from csezoo.modeling.contrastive.training_model import ContrastiveLearningOutput, ForContrastiveLearning

from ..data.collation import ViewCollator
from ..errors import UserError
from ..loading.served_encoder import follow_base
from ..loop.building import Build, build_on
from ..recipes import make_recipe, method_keys
from ..recipes.reading import refuse_unknown
from .parts import LossParts, Stages, draws, refuse_labelled, refuse_without_callback

# Keys of every recipe that describe the model, and not the training.
MODEL_KEYS: tuple[str, ...] = (
    "base_revision",
    "generator",
    "generator_revision",
    "max_length",
    "mini_batch_size",
    "dropout",
    "attn_implementation",
    "batch_size",
)
LABELS = {"label", "labels"}


class Trained(ForContrastiveLearning):
    """A training model in a trainer: it checks what it is given, and remembers the parts of its loss.

    `for_training` makes a class of this one and the method's.
    """

    accepts_loss_kwargs = False  # so that the trainer divides the loss by the number of accumulated batches
    stages: Stages
    parts: LossParts
    eval_parts: LossParts

    def freeze(self, stage: str) -> None:
        """Set what a stage trains."""
        self.stages.freeze(self, stage)

    def begin(self, stage: str = "contrastive") -> None:
        """Begin a stage. A loop of your own calls this before it makes the optimizer, a trainer has a callback."""
        self.freeze(stage)
        self.begin_stage(stage)

    def forward(  # type: ignore[override]  # the names that a trainer looks for
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        return_loss: bool = True,
        **batch: Any,
    ) -> ContrastiveLearningOutput:
        """Compute the losses of a batch of the collator, see `ForContrastiveLearning.forward`."""
        ids = batch.get("nli_input_ids") if input_ids is None else input_ids
        if ids is None or ids.dim() != 3:
            got = "none" if ids is None else str(tuple(ids.shape))
            raise UserError(
                f"input_ids: expected (sentences, views, tokens), got {got}; use the collator of csezoo.for_training"
            )
        if self.training:
            stage = "nli" if input_ids is None else "contrastive"
            refuse_without_callback(self, stage, self.stages.begun)
            if stage == "contrastive" and self.config.nli_weight > 0 and "nli_input_ids" not in batch:
                raise UserError(
                    "nli_weight: a trainer's batch has no labelled pairs beside its sentences; leave the key out, or "
                    "write a loop that gives both: model(**collator(texts), **collator.labelled(pairs))"
                )
        output = super().forward(input_ids, attention_mask, **batch)
        if self.training:
            self.parts.add(output.losses or {})
        else:
            self.eval_parts.add(output.losses or {}, len(ids))
        return output


@dataclass
class TextCollator:
    """Collates rows of texts into the batch of a training model: of views, or in stage `nli` of labelled pairs."""

    config: SentenceEncoderConfig
    sentences: ViewCollator
    pairs: ViewCollator
    stage: str = "contrastive"

    @classmethod
    def of(cls, built: Build) -> TextCollator:
        """Return the collator of a training model. It does not have the model, which worker processes need not get."""
        config = cast(SentenceEncoderConfig, built.model.config)
        return cls(config, built.collator(texts=True), built.collator(labelled=True, texts=True))

    @property
    def labelled(self) -> TextCollator:
        """The collator of a stage on labelled pairs alone."""
        return replace(self, stage="nli")

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return token ids and attention mask `(B, V, T)`. A method's edits are made in evaluation, too.

        Args:
            rows: the texts of each sentence, whatever their columns are called: a sentence; a pair; or a triplet with
                a hard negative at its end. `label` is used in stage `nli` alone.

        Raises:
            UserError: a column has no text, the method takes another number of columns, or labels do not fit.
        """
        names = [name for name in rows[0] if name not in LABELS]
        if not names:
            raise UserError("the rows have no texts; give the trainer remove_unused_columns=False")
        if wrong := [name for name in names if not all(isinstance(row[name], str) for row in rows)]:
            raise UserError(f"{wrong[0]}: expected texts; remove the column from the data set")
        texts: list[dict[str, Any]] = [{str(n): row[name] for n, name in enumerate(names)} for row in rows]
        if self.stage == "contrastive":
            return self.sentences(texts, draws(len(texts)) if self.sentences.edit_sentence else ())
        labels = [row[name] for name in rows[0].keys() & LABELS for row in rows]
        refuse_labelled(self.config, len(names), labels or None)
        for text, label in zip(texts, labels, strict=False):
            text["label"] = label
        batch = self.pairs(texts)
        return {f"nli_{name}": value for name, value in batch.items()}


def for_training(method: str, base_model: str, **keys: Any) -> tuple[Trained, TextCollator]:
    """Build the training model of a method, and the collator that makes its batches of texts.

    Args:
        method: a method, or several joined by `+`.
        base_model: Hub id or directory of the encoder.
        keys: of the method, and `generator`, `max_length`, `mini_batch_size`, `dropout`, `base_revision`,
            `generator_revision`, `attn_implementation`, `batch_size` (of all processes), as in a recipe. What is not
            given has the default of the method's configuration.

    Returns:
        The model, and the collator for `data_collator`. Give the trainer `remove_unused_columns=False`, so that the
        texts reach the collator, and `csezoo.TrainingCallback()`. `model.serving_model().save_pretrained(directory)`
        writes the published form after training.

    Raises:
        UserError: a key is unknown, or the base model or the generator cannot be used.

    Example:
        >>> from datasets import Dataset
        >>> from transformers import Trainer, TrainingArguments
        >>> import csezoo
        >>> generator = "distilbert/distilbert-base-uncased"
        >>> model, collator = csezoo.for_training("diffcse", "google-bert/bert-base-uncased", generator=generator)
        >>> collator([{"text": "A cat."}, {"text": "A dog."}])["input_ids"].shape  # sentences, views, tokens
        torch.Size([2, 2, 5])
        >>> arguments = TrainingArguments("runs/diffcse", max_steps=1, remove_unused_columns=False, report_to="none")
        >>> rows = Dataset.from_dict({"text": ["A cat sees a dog.", "It rains.", "The sun shines.", "He sings."]})
        >>> trainer = Trainer(model, arguments, collator, rows, callbacks=[csezoo.TrainingCallback()])
        >>> trainer.train().global_step  # doctest: +ELLIPSIS
        {'train_runtime': ...}
        1
        >>> model.serving_model().save_pretrained("runs/diffcse/best")
    """
    refuse_unknown([key for key in keys if key not in MODEL_KEYS], method_keys(method).keys())
    recipe = make_recipe({"name": "for_training", "method": method, "base_model": base_model, **keys})
    built = build_on(*follow_base(recipe))
    model = built.model
    usual = type(model)
    # Its name is that of the method's class, which loads what the trainer saves.
    place = {"__module__": usual.__module__, "config_class": usual.config_class, "serving_class": usual.serving_class}
    model.__class__ = type(usual.__name__, (Trained, usual), place)
    trained = cast(Trained, model)
    trained.train()
    trained.stages, trained.parts, trained.eval_parts = Stages(), LossParts(), LossParts()
    for encoder in [trained.model, *(average for average, of in trained.averages() if of is trained.model)]:
        encoder.tokenizer = built.serving_tokenizer
    return trained, TextCollator.of(built)
