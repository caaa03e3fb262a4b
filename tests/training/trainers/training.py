"""Trainings of a tiny model with a loss in `SentenceTransformerTrainer`, and with the zoo's own loop."""

import warnings
from dataclasses import dataclass, field, replace

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from csezoo.losses import ZooLoss
from csezoo.training.loop.building import build
from csezoo.training.loop.training_loop import Stage, start_stage, update
from csezoo.training.recipes import make_recipe
from csezoo.training.trainers.binding import unwrapped
from csezoo.training.trainers.for_training import TextCollator
from tests.conftest import SENTENCES, sentence_transformer
from tests.methods import TESTED, exact

# Without a space before the full stop, so that decoded tokens are the texts again.
TEXTS = [sentence.replace(" .", ".") for sentence in SENTENCES]
LONGEST = 40
# The loop as the trainer has it.
LOOP = {"weight_decay": 0.0, "lr_scheduler": "constant", "warmup_ratio": 0.0, "max_grad_norm": 0.0}


@dataclass
class Recording(SentenceTransformerDataCollator):
    """The trainer's own collator, which remembers its rows."""

    batches: list = field(default_factory=list)

    def __call__(self, features):
        self.batches.append(features)
        return super().__call__(features)


def settings(name):
    """The keys of a tiny model."""
    keys = {}
    for one in name.split("+"):
        keys |= TESTED[one].settings
    return {key: value for key, value in keys.items() if key != "batch_size"}


def still(name):
    """The keys at which nothing is drawn."""
    keys = exact(name) | {key: value for one in name.split("+") for key, value in TESTED[one].unedited.items()}
    return {key: value for key, value in keys.items() if key not in settings(name) and key != "batch_size"}


def loss_of(name, base, generator, model=None, dtype=torch.float64, **options):
    """A loss for a new model, with the keys of `settings`."""
    torch.manual_seed(0)
    model = (model or sentence_transformer(base, longest=LONGEST)).to(dtype).train()
    needs = {"generator": str(generator)} if "diffcse" in name and options.get("rtd_weight") != 0 else {}
    return ZooLoss(model, name, **{**settings(name), **needs, **options})


def sentences(count):
    return Dataset.from_dict({"text": TEXTS[:count]})


def triplets(count):
    return Dataset.from_dict({"anchor": TEXTS[:count], "follows": TEXTS[1 : count + 1], "not": TEXTS[9 : count + 9]})


# Three updates of four rows, as the loop makes them.
ARGUMENTS = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "weight_decay": 0.0}
ARGUMENTS |= {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "report_to": "none", "disable_tqdm": True}
ARGUMENTS |= {"save_strategy": "no", "logging_steps": 1, "use_cpu": True, "dataloader_pin_memory": False}


def train_in_trainer(loss, directory, rows, wrap=None, callbacks=None, resume=None, eval_rows=None, **arguments):
    """Train with a loss, and return the trainer: its collator has the batches, `draws` the random state of each.

    `passes` is the random state of the model's forward pass, where the collator has drawn before it.
    """
    model = unwrapped(loss.model)
    chosen = SentenceTransformerTrainingArguments(str(directory), **{**ARGUMENTS, **arguments})
    draws = []
    handle = loss.register_forward_pre_hook(lambda *_: draws.append(torch.get_rng_state()))
    trainer = SentenceTransformerTrainer(
        model,
        chosen,
        train_dataset=rows,
        eval_dataset=eval_rows,
        loss=wrap(model, loss) if wrap else loss,
        data_collator=Recording(model.preprocess),
        callbacks=callbacks,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*lr_scheduler.step.*")
        trainer.train(resume_from_checkpoint=resume)
    handle.remove()
    trainer.draws, trainer.passes = draws, []
    return trainer


def own_model(loss, base, generator, dtype=torch.float64, adapt=None, **changes):
    """The training model that the zoo's own loop builds, with the weights that a loss has now, and its recipe."""
    name = loss.method
    keys = {"pooling": "mean", "projection_at_test": False, "max_length": LONGEST, **LOOP, **loss.keys, **changes}
    if "diffcse" in name:
        keys["generator"] = str(generator)
    recipe = make_recipe({"name": "own", "method": name, "base_model": str(base), **keys})
    built = build(recipe)
    if adapt:
        adapt(built.model.model.backbone)
    own = built.model.to(dtype)
    state = loss.trained.state_dict()
    own.load_state_dict({name: state[name] for name in own.state_dict()})
    return built, recipe


def train_in_own_loop(built, recipe, trainer, accumulated=1, precision="no", stage="contrastive", first=0):
    """Make the updates of a trainer with the zoo's own loop, with the same draws, and return the losses."""
    plugin = GradientAccumulationPlugin(num_steps=accumulated)
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_plugin=plugin)
    model = built.model.train()
    passes = []  # the random state of each forward pass
    model.register_forward_pre_hook(lambda *_: torch.set_rng_state(passes.pop(0)))
    updates = len(trainer.draws) // accumulated
    wrapped, optimizer, scheduler = start_stage(Stage(stage, 0, updates, updates, 1e-3), recipe, model, accelerator)
    collate = replace(TextCollator.of(built), stage=stage)

    def batches():
        for number, (rows, state) in enumerate(zip(trainer.data_collator.batches, trainer.draws, strict=False)):
            torch.set_rng_state(state)
            batch = collate(rows)  # it draws the edits, as a loss does in its forward pass
            passes.append(trainer.passes[number] if trainer.passes else torch.get_rng_state())
            yield batch

    loader = batches()
    losses = []
    for _ in range(updates):
        parts, _ = update(wrapped, optimizer, loader, recipe, accelerator)
        scheduler.step()
        with torch.no_grad():
            model.after_update()
        losses.append(parts["loss"].item())
    return losses


def assert_same_weights(loss, own, atol=1e-9):
    """Every tensor of the zoo's own model is that of the loss."""
    assert_same(loss.trained, own, atol)


def assert_same(model, own, atol=1e-9):
    state = model.state_dict()
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(
            state[name], tensor, atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
