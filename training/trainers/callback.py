"""`TrainingCallback`: what the zoo's own loop does around the updates, for `transformers.Trainer`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import UserError
from .for_training import Trained
from .parts import small_weights

if TYPE_CHECKING:  # sentence-transformers is optional
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss

    from .zoo_loss import ZooLoss

LOSS = re.compile(r"loss|eval_(.+_)?loss")
HEADS = "csezoo_loss_{}.safetensors"  # those of each loss, by its number
ENCODER = "encoder"  # small weights of the encoder that the heads in a file belong to


class TrainingCallback(TrainerCallback):
    """Does around the updates of a trainer what the zoo's own loop does.

    * It freezes what the stage does not train, such as the encoder with `lora_rank`, and begins the stage.
    * After each optimizer step it updates the method's state, such as `ema_decay`'s average.
    * It adds the named parts of the loss to the logs, of several losses the mean over the batches of all. Trackers of
      `report_to` are called before; give them to the trainer after this callback to log the parts, too.
    * For losses, it saves their heads in the trainer's checkpoints, and loads them where training resumes from a
      checkpoint in `output_dir`. (A model of `for_training` is saved by the trainer, with everything it has.)

    Args:
        losses: those of a `SentenceTransformerTrainer`, as it takes them: a loss, a `MatryoshkaLoss` around one, or a
            dict of them. They have begun their stage. None for a `transformers.Trainer`, which has the model.
        stage: of the model: `contrastive`, or `nli`, which trains on labelled pairs alone.

    Raises:
        UserError: the trainer's model was not made by `for_training`, and no loss was given; or another loss was; or
            the trainer has two of these callbacks.

    Example:
        >>> TrainingCallback(stage="nli").stage
        'nli'
    """

    def __init__(
        self,
        *losses: ZooLoss | MatryoshkaLoss | dict[str, ZooLoss | MatryoshkaLoss],
        stage: str = "contrastive",
    ):
        self.losses = tuple(dict.fromkeys(losses_in(losses))) if losses else ()
        self.stage = stage
        for loss in self.losses:  # they share their parts: a log has the mean over the batches of all, as of the loss
            loss.parts, loss.eval_parts = self.losses[0].parts, self.losses[0].eval_parts

    def on_init_end(self, *_: Any, model: Any = None, **__: Any) -> None:
        """Freeze parameters. Later would be too late: the trainer makes the optimizer and wraps the model first."""
        for loss in self.losses:
            loss.called_back = True
        if not self.losses:
            self._trained(model).freeze(self.stage)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        if vars(state).setdefault("csezoo_callback", self) is not self:  # each training has a state of its own
            raise UserError(
                "TrainingCallback: the trainer has two, whose heads would overwrite each other; give one all losses, "
                "TrainingCallback(loss, other)"
            )
        first = self.losses[0] if self.losses else self._trained(model)
        first.parts.take()  # of an earlier training
        first.eval_parts.take()
        if not self.losses:
            trained = self._trained(model)
            if trained.stages.begun != self.stage:  # the trainer has made a new model
                trained.freeze(self.stage)
            if state.global_step == 0:
                trained.begin_stage(self.stage)
        if state.global_step == 0:
            return
        for number, loss in enumerate(self.losses):
            file = self._file(args, state, number)
            if not file.is_file():
                raise UserError(
                    f"{file}: not found; resume from a checkpoint in output_dir that was written with "
                    "TrainingCallback(loss), others have no heads"
                )
            heads = load_file(file)
            begun, now = heads.pop(ENCODER, None), small_weights(loss.bound[0])
            if begun is not None and not torch.equal(begun.to(now.dtype).float(), now.float()):  # PEFT reads float32
                raise UserError(f"{file}: its heads are of another encoder; set output_dir to that of the checkpoint")
            loss.load_heads(heads)

    @torch.no_grad()
    def on_optimizer_step(self, *_: Any, model: Any = None, optimizer: Any = None, **__: Any) -> None:
        if isinstance(optimizer, AcceleratedOptimizer) and optimizer.step_was_skipped:
            return  # fp16 skipped an update that overflowed
        for trained in [loss.trained for loss in self.losses] or [self._trained(model)]:
            trained.after_update()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        for number, loss in enumerate(self.losses if state.is_world_process_zero else ()):
            save_file(loss.heads() | {ENCODER: small_weights(loss.bound[0])}, self._file(args, state, number))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Load the heads of the best checkpoint, whose encoder the trainer has loaded."""
        for number, loss in enumerate(self.losses if args.load_best_model_at_end else ()):
            file = Path(state.best_model_checkpoint or "", HEADS.format(number))
            if file.is_file():
                heads = load_file(file)
                heads.pop(ENCODER, None)
                loss.load_heads(heads)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        first = self.losses[0] if self.losses else self._trained(model)
        for total in [key for key in logs or {} if LOSS.fullmatch(key)]:  # eval_NAME_loss of several sets
            prefix, parts = total.removesuffix("loss"), first.eval_parts if total != "loss" else first.parts
            named = {prefix + name: value for name, value in parts.take().items()}
            state.log_history[-1].update(named)
            logs.update(named)  # type: ignore[union-attr]

    @staticmethod
    def _trained(model: torch.nn.Module) -> Trained:
        if not isinstance(model, Trained):
            raise UserError(
                f"TrainingCallback: {type(model).__name__} was not made by csezoo.for_training; give the callback the "
                "losses of a SentenceTransformerTrainer, TrainingCallback(loss)"
            )
        return model

    @staticmethod
    def _file(args: TrainingArguments, state: TrainerState, number: int) -> Path:
        return Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", HEADS.format(number))


def losses_in(given: Iterable[Any]) -> Iterator[ZooLoss]:
    """Yield the losses of the zoo in what a trainer takes: losses, a `MatryoshkaLoss` around one, dicts of both.

    Raises:
        UserError: there is something else.
    """
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss

    from .zoo_loss import ZooLoss

    for each in given:
        for outer in each.values() if isinstance(each, dict) else [each]:
            loss = outer.loss if isinstance(outer, MatryoshkaLoss) else outer
            if not isinstance(loss, ZooLoss):
                raise UserError(
                    f"TrainingCallback: expected losses of csezoo.losses, got {type(loss).__name__}; "
                    "give it these alone"
                )
            yield loss
