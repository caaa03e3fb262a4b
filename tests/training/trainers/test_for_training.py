"""`for_training` and `TrainingCallback` in `transformers.Trainer`: the updates of the zoo's own loop."""

import pickle

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForPreTraining, AutoTokenizer, Trainer, TrainingArguments

from csezoo import TrainingCallback, for_training
from csezoo.modeling import DiffCSEForContrastiveLearning, SimCSEConfig, SimCSEForContrastiveLearning
from csezoo.training.errors import UserError
from csezoo.training.loop.building import build
from csezoo.training.recipes import make_recipe
from tests.conftest import tiny_config
from tests.methods import RUNS
from tests.training.trainers import training
from tests.training.trainers.training import (
    ARGUMENTS,
    LONGEST,
    LOOP,
    TEXTS,
    assert_same,
    sentences,
    settings,
    triplets,
)


@pytest.fixture
def base(bases):
    return bases["bert"]


def keys_of(name, base, **changes):
    needs = {"generator": str(base)} if "diffcse" in name else {}
    needs |= {"batch_size": 4} if name == "contrastive_tension" else {}
    return {"max_length": LONGEST, **settings(name), **needs, **changes}


def made(name, base, **changes):
    torch.manual_seed(0)
    model, collator = for_training(name, str(base), **keys_of(name, base, **changes))
    return model.double(), collator


class Recording:
    """The collator that `for_training` returned, which remembers its rows."""

    def __init__(self, collator):
        self.collator, self.batches, self.draws = collator, [], []

    def __call__(self, rows):
        self.batches.append(rows)
        self.draws.append(torch.get_rng_state())
        return self.collator(rows)


def trainer_of(model, collator, directory, rows, callbacks=(), **arguments):
    chosen = TrainingArguments(str(directory), remove_unused_columns=False, **{**ARGUMENTS, **arguments})
    return Trainer(model, chosen, collator, rows, eval_dataset=sentences(8), callbacks=list(callbacks))


def train(model, collator, directory, rows=None, callbacks=None, resume=None, **arguments):
    """Train, and return the trainer with the random states of each batch and of each forward pass."""
    callbacks = [TrainingCallback()] if callbacks is None else callbacks
    trainer = trainer_of(model, Recording(collator), directory, rows or sentences(16), callbacks, **arguments)
    trainer.passes = []
    handle = model.register_forward_pre_hook(lambda *_: trainer.passes.append(torch.get_rng_state()))
    trainer.train(resume_from_checkpoint=resume)
    handle.remove()
    trainer.draws = trainer.data_collator.draws[: len(trainer.passes)]
    return trainer


def train_in_own_loop(name, base, trainer, state, accumulated=1, stage="contrastive", **changes):
    """Make the updates of a trainer with the zoo's own loop, and return the model."""
    keys = {**LOOP, **keys_of(name, base), **changes, "gradient_accumulation_steps": accumulated}
    recipe = make_recipe({"name": "own", "method": name, "base_model": str(base), **keys})
    built = build(recipe)
    built.model.double().load_state_dict(state)
    built.model.begin_stage(stage)
    training.train_in_own_loop(built, recipe, trainer, accumulated, stage=stage)
    return built.model


def copied(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def follows(base, tmp_path):
    """Train, and in the zoo's own loop; compare the weights, and return the trainer and the weights before."""

    def follows(name, model, collator, rows=None, callbacks=None, own=None, **arguments):
        state = copied(model)
        trainer = train(model, collator, tmp_path, rows, callbacks, **arguments)
        assert_same(model, train_in_own_loop(name, base, trainer, state, **(own or {})))
        return trainer, state

    return follows


@pytest.mark.parametrize("name", RUNS)
def test_a_trainer_follows_the_zoos_own_loop_update_by_update(name, base, follows):
    follows(name, *made(name, base))


@pytest.mark.parametrize("name", ["simcse", "diffcse"])
def test_accumulated_batches_are_those_of_the_own_loop(name, base, follows):
    follows(name, *made(name, base), own={"accumulated": 2}, gradient_accumulation_steps=2)


@pytest.mark.parametrize("changes", [{"ema_decay": 0.5}, {"lora_rank": 2}])
def test_averages_and_lora_are_those_of_the_own_loop(changes, base, follows):
    model, collator = made("simcse", base, **changes)
    _, state = follows("simcse", model, collator, own=changes)
    moved = {name.split(".")[0] for name, tensor in model.state_dict().items() if not torch.equal(tensor, state[name])}
    assert moved == ({"model", "average", "projection"} if "ema_decay" in changes else {"model", "projection"})
    backbone = [name for name in state if name.startswith("model.backbone.")]
    frozen = all(torch.equal(model.state_dict()[name], state[name]) for name in backbone)
    assert frozen == ("lora_rank" in changes)


def test_both_stages_of_diffaug_are_those_of_the_own_loop(base, follows):
    model, collator = made("diffaug", base)
    first = [TrainingCallback(stage="nli")]
    trainer, _ = follows("diffaug", model, collator.labelled, triplets(16), first, own={"stage": "nli"})
    assert set(trainer.state.log_history[0]) >= {"nli", "loss"}
    follows("diffaug", model, collator)


@pytest.mark.parametrize(
    ("name", "changes", "labelled", "message"),
    [
        ("simcse", {"ema_decay": 0.5}, False, "ema_decay: its average"),
        ("simcse", {"lora_rank": 2}, False, "lora_rank: the encoder"),
        ("diffaug", {}, True, "stage nli: it does not train all parameters"),
        ("diffaug", {"freeze_backbone": True}, False, "stage contrastive: it does not train all"),
    ],
)
def test_without_the_callback_the_first_step_says_what_is_missing(name, changes, labelled, message, base, tmp_path):
    model, collator = made(name, base, **changes)
    state = copied(model)
    chosen, rows = (collator.labelled, triplets(8)) if labelled else (collator, sentences(8))
    with pytest.raises(UserError, match=rf"{message}.*callbacks=\[csezoo.TrainingCallback\(\)\]"):
        train(model, chosen, tmp_path, rows, callbacks=[])
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["simcse", "sgopt", "l2pcsr"])
def test_a_method_that_needs_no_callback_trains_without_one(name, base, follows):
    follows(name, *made(name, base), callbacks=[])


def test_what_the_user_has_frozen_stays_frozen(base, tmp_path):
    model, collator = made("simcse", base)
    frozen = model.model.backbone.embeddings.requires_grad_(False)
    train(model, collator, tmp_path)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert model.projection.dense.weight.requires_grad


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft reads it
@pytest.mark.parametrize("whole", [False, True], ids=["backbone", "training model"])
def test_adapters_of_peft_are_merged_into_what_is_published(whole, base, tmp_path):
    model, _ = made("simcse", base, pooling="mean")
    adapters = LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    model.float()
    if whole:
        get_peft_model(model, adapters)
    else:
        model.model.backbone.add_adapter(adapters)
    serving = model.eval().serving_model()
    serving.save_pretrained(tmp_path)
    served = torch.tensor(SentenceTransformer(str(tmp_path)).encode(TEXTS[:3]))
    torch.testing.assert_close(served, torch.tensor(serving.encode(TEXTS[:3])), atol=1e-6, rtol=0)


def test_a_trainer_without_labelled_pairs_refuses_their_weight(base, tmp_path):
    model, collator = made("simcse", base, nli_classes=2, nli_weight=0.5)
    with pytest.raises(UserError, match="nli_weight: a trainer's batch has no labelled pairs beside its sentences"):
        train(model, collator, tmp_path)
    pairs = collator.labelled([{"a": "the cat", "b": "the dog", "label": 1}])
    assert set(model(**collator([{"text": text} for text in TEXTS[:2]]), **pairs).losses) == {"contrastive", "nli"}


def test_a_batch_of_another_stage_is_refused(base, tmp_path):
    model, collator = made("diffaug", base)
    with pytest.raises(UserError, match=r"stage: contrastive has begun.*TrainingCallback\(stage='nli'\)"):
        train(model, collator.labelled, tmp_path, triplets(8))
    with pytest.raises(UserError, match="stage: 'labelled' must be contrastive or nli"):
        train(model, collator, tmp_path, callbacks=[TrainingCallback(stage="labelled")])
    with pytest.raises(UserError, match="stage: nli needs nli_classes"):
        train(*made("simcse", base), tmp_path, callbacks=[TrainingCallback(stage="nli")])


def test_the_callback_refuses_a_model_it_does_not_know(base, tmp_path):
    model = SimCSEForContrastiveLearning(SimCSEConfig(backbone_config=tiny_config("bert")))
    with pytest.raises(UserError, match="was not made by csezoo.for_training"):
        trainer_of(model, None, tmp_path, sentences(4), [TrainingCallback()])


@pytest.mark.parametrize("shape", [(8, 32), (8,)])
def test_inputs_of_another_shape_say_what_was_expected(shape, base):
    model, _ = made("simcse", base)
    with pytest.raises(UserError, match=r"expected \(sentences, views, tokens\), got \(8,"):
        model(input_ids=torch.ones(shape, dtype=torch.long))
    with pytest.raises(UserError, match="got none"):
        model()


def test_the_parts_of_the_loss_are_logged_in_training_and_in_evaluation(base, tmp_path):
    model, collator = made("diffcse", base)
    trainer = train(model, collator, tmp_path, eval_strategy="steps", eval_steps=3, gradient_accumulation_steps=2)
    *steps, evaluated, _ = trainer.state.log_history
    for row in steps:
        assert row["loss"] == pytest.approx(row["contrastive"] + model.config.rtd_weight * row["rtd"], rel=1e-4)
    expected = evaluated["eval_contrastive"] + model.config.rtd_weight * evaluated["eval_rtd"]
    assert evaluated["eval_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.5}])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(changes, base, tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    uninterrupted, collator = made("simcse", base, **changes)
    train(uninterrupted, collator, tmp_path, **options)
    resumed, collator = made("simcse", base, **changes)
    train(resumed, collator, tmp_path, resume=str(tmp_path / "checkpoint-2"), **options)
    assert_same(resumed, uninterrupted)


def test_the_trainer_loads_the_checkpoint_that_was_best_by_eval_loss(base, tmp_path):
    model, collator = made("simcse", base)
    options = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "eval_steps": 1}
    trainer = train(model, collator, tmp_path, load_best_model_at_end=True, learning_rate=0.1, **options)
    losses = {row["step"]: row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row}
    best = min(losses, key=losses.__getitem__)
    assert len(losses) == 3 and trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    weights = load_file(tmp_path / f"checkpoint-{best}" / "model.safetensors")
    assert all(weights[name].equal(tensor) for name, tensor in model.state_dict().items() if name in weights)


def test_a_checkpoint_is_a_training_model_and_the_serving_model_a_published_repository(base, tmp_path):
    model, collator = made("simcse", base, pooling="mean")
    train(model.float(), collator, tmp_path, save_strategy="steps", save_steps=3)
    loaded = AutoModelForPreTraining.from_pretrained(tmp_path / "checkpoint-3")
    assert type(loaded) is SimCSEForContrastiveLearning
    assert_same(loaded, model)
    model.eval().serving_model().save_pretrained(tmp_path / "best")
    assert (tmp_path / "best" / "modules.json").is_file()
    expected = torch.tensor(model.serving_model().encode(TEXTS[:3]))
    served = torch.tensor(SentenceTransformer(str(tmp_path / "best")).encode(TEXTS[:3]))
    torch.testing.assert_close(served, expected, atol=1e-6, rtol=0)


def test_bf16_autocasts_the_model(base, tmp_path):
    model, collator = made("diffcse", base)
    train(model.float(), collator, tmp_path, bf16=True)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_collator_takes_columns_of_any_name_in_their_order(base):
    _, collator = made("simcse", base)
    rows = [{"anchor": "the cat", "positive": "the dog"}, {"anchor": "the old horse", "positive": "the bird"}]
    batch = collator(rows)
    tokenizer = AutoTokenizer.from_pretrained(base)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 2, 5)
    assert tokenizer.decode(batch["input_ids"][0, 1], skip_special_tokens=True) == "the dog"
    collator = made("simcse", base, nli_classes=2)[1]
    labelled = collator.labelled([{"a": "the cat", "b": "the dog", "label": 1}])
    assert labelled["nli_labels"].tolist() == [1] and labelled["nli_input_ids"].shape == (1, 2, 4)
    with pytest.raises(UserError, match="score: expected texts"):
        collator([{"text": "the cat", "score": 1.0}])
    for name, takes in {"sgopt": "one text column or two", "simcse": "one to three text columns"}.items():
        with pytest.raises(UserError, match=f"{takes}, not 4"):
            made(name, base)[1]([{name: "the cat" for name in "abcd"}])
    with pytest.raises(UserError, match="no texts; give the trainer remove_unused_columns=False"):
        collator([{"label": 0}])


@pytest.mark.parametrize(
    ("row", "keys", "message"),
    [
        ({"a": "the cat"}, {}, "the rows have 1 texts"),
        ({"a": "the cat", "b": "the dog"}, {}, "needs a column of labels for pairs"),
        ({"a": "the cat", "b": "the dog", "c": "the tree", "label": 1}, {}, "no labels for triplets"),
        ({"a": "the cat", "b": "the dog", "label": 1}, {"nli_objective": "contrastive"}, "needs triplets"),
        *(
            (
                {"a": "the cat", "b": "the dog", "label": label},
                {},
                rf"from 0 to 1 \(nli_classes\), got {label!r}",
            )
            for label in (2, -1, 0.9, "yes")
        ),
    ],
)
def test_labelled_pairs_that_do_not_fit_are_refused(row, keys, message, base):
    _, collator = made("simcse", base, nli_classes=2, **keys)
    with pytest.raises(UserError, match=message):
        collator.labelled([row, row])


def test_labels_may_be_tensors_or_numbers_of_numpy(base):
    _, collator = made("simcse", base, nli_classes=2)
    labels = [torch.tensor(1), np.int64(0), True]
    batch = collator.labelled([{"a": "the cat", "b": "the dog", "label": label} for label in labels])
    assert batch["nli_labels"].tolist() == [1, 0, 1]


def test_each_batch_has_its_own_edits(base):
    _, collator = made("consert", base)
    first, second = (collator([{"text": text} for text in TEXTS[:3]])["input_ids"] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["consert", "l2pcsr+prdsimcse"])
def test_worker_processes_can_be_sent_the_collator_without_the_model(name, base):
    _, collator = made(name, base)
    sent = pickle.dumps(collator)
    rows = [{"text": text} for text in TEXTS[:3]]
    batches = []
    for each in (collator, pickle.loads(sent)):  # noqa: S301  # made above
        torch.manual_seed(0)
        batches.append(each(rows)["input_ids"])
    assert torch.equal(*batches)
    assert b"storage" not in sent, "there are no tensors in it"


@pytest.mark.parametrize(
    ("method", "keys", "message"),
    [
        ("diffcse", {}, "generator: DiffCSE needs a masked language model"),
        ("simcse", {"temprature": 0.1}, "did you mean temperature"),
        (
            "simcse",
            {"learning_rate": 1e-3},
            "unknown key 'learning_rate': a key of csezoo's own runs; set it in your trainer",
        ),
        ("simcsee", {}, "must be one of simcse"),
    ],
)
def test_keys_that_it_does_not_have_are_refused(method, keys, message, base):
    with pytest.raises((UserError, ValueError), match=message):
        for_training(method, str(base), **keys)


def test_from_pretrained_on_a_bare_encoder_says_what_to_call(base):
    with pytest.raises(ValueError, match=rf"bare encoder \(bert\).*csezoo.for_training\('diffcse', '{base}'\)"):
        DiffCSEForContrastiveLearning.from_pretrained(base)
