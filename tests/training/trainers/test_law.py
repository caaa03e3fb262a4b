"""The law: a loss in `SentenceTransformerTrainer` makes the updates that the zoo's own loop makes.

Both begin with the same weights and have the same batches and draws.
"""

import pytest
import torch
from datasets import DatasetDict
from peft import LoraConfig
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss

from csezoo import TrainingCallback
from csezoo.training.errors import UserError
from tests.conftest import sentence_transformer
from tests.methods import RUNS
from tests.training.trainers.training import (
    LONGEST,
    assert_same_weights,
    loss_of,
    own_model,
    sentences,
    still,
    train_in_own_loop,
    train_in_trainer,
    triplets,
)

SOME = ["simcse", "diffcse", "l2pcsr"]


@pytest.fixture
def base(bases):
    return bases["bert"]


@pytest.fixture
def follows(base, tmp_path):
    """Train with a loss, and in the zoo's own loop; compare the weights, and return the trainer and the loop's losses.

    `own` are keys of the loop's recipe, and `options` those of `train_in_trainer`.
    """

    def follows(loss, rows=None, encoder=base, own=None, loop=None, atol=1e-9, **options):
        built, recipe = own_model(loss, encoder, base, **(own or {}))
        trainer = train_in_trainer(loss, tmp_path, rows or sentences(12), **options)
        losses = train_in_own_loop(built, recipe, trainer, **(loop or {}))
        assert_same_weights(loss, built.model, atol)
        return trainer, losses

    return follows


@pytest.mark.parametrize("name", RUNS)
def test_a_loss_follows_the_zoos_own_loop_update_by_update(name, base, follows):
    trainer, expected = follows(loss_of(name, base, base))
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    torch.testing.assert_close(losses, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", SOME)
def test_accumulated_batches_are_those_of_the_own_loop(name, base, follows):
    twice = {"gradient_accumulation_steps": 2}
    trainer, _ = follows(loss_of(name, base, base), sentences(24), own=twice, loop={"accumulated": 2}, **twice)
    assert len(trainer.draws) == 6


@pytest.mark.parametrize("name", [*SOME, "prdsimcse", "sgopt", "diffaug"])
def test_bf16_is_that_of_the_own_loop_heads_included(name, base, follows):
    loss = loss_of(name, base, base, dtype=torch.float32)
    own = {"dtype": torch.float32, "mixed_precision": "bf16"}
    follows(loss, own=own, loop={"precision": "bf16"}, atol=1e-6, bf16=True)


@pytest.mark.parametrize("name", [*SOME, "sgopt", "l2pcsr+diffcse"])
def test_gradient_checkpointing_changes_no_update(name, base, follows):
    def checkpoint(model, loss):
        model.gradient_checkpointing_enable({"use_reentrant": False})  # as the trainer does
        return loss

    follows(loss_of(name, base, base), wrap=checkpoint)


@pytest.mark.parametrize("name", [*SOME, "diffaug"])
def test_peft_adapters_on_the_model_are_trained_as_they_are(name, base, follows):
    def adapt(model):
        model.add_adapter(LoraConfig(r=2, target_modules=["query", "value"], lora_dropout=0.1))

    model = sentence_transformer(base, longest=LONGEST)
    adapt(model)
    loss = loss_of(name, base, base, model=model)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    follows(loss, own={"adapt": adapt})
    changed = {name for name, tensor in model.named_parameters() if not torch.equal(tensor, before[name])}
    assert changed and all("lora_" in name for name in changed)


@pytest.mark.parametrize("name", [*SOME, "sgopt"])
def test_matryoshka_loss_is_the_key_matryoshka_dims(name, base, follows):
    loss = loss_of(name, base, base, **({"projection": "tanh"} if name == "sgopt" else {}))

    def wrap(model, loss):
        return MatryoshkaLoss(model, loss, [32, 16, 8], [1.0, 2.0, 0.5])

    follows(loss, own={"matryoshka_dims": [8, 16], "matryoshka_weights": [0.5, 2.0]}, wrap=wrap)
    assert loss.trained.config.matryoshka_dims is None


@pytest.mark.parametrize("name", ["simcse", "diffcse", "prdsimcse", "sgopt", "diffaug"])
def test_mini_batches_have_the_update_of_the_complete_batch(name, base_without_dropout, base, follows):
    loss = loss_of(name, base_without_dropout, base, mini_batch_size=1, **still(name))
    # Sums are in another order. The gradient of a key's bias is 0 but for rounding, and Adam divides it by its size.
    follows(loss, encoder=base_without_dropout, atol=1e-5)


def test_both_stages_of_diffaug_are_those_of_the_own_loop(base, tmp_path):
    loss = loss_of("diffaug", base, base, stage="nli")
    built, recipe = own_model(loss, base, base)
    encoder = loss.model[0].auto_model
    before = {name: tensor.clone() for name, tensor in encoder.named_parameters()}
    trainer = train_in_trainer(loss, tmp_path, triplets(12))
    train_in_own_loop(built, recipe, trainer, stage="nli")
    assert_same_weights(loss, built.model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.named_parameters())
    assert set(loss.parts.take()) == {"nli"}

    loss.begin_stage("contrastive")
    built.model.requires_grad_()
    built.model._forward_pre_hooks.clear()
    trainer = train_in_trainer(loss, tmp_path, sentences(12))
    train_in_own_loop(built, recipe, trainer)
    assert_same_weights(loss, built.model)
    assert not torch.equal(encoder.embeddings.word_embeddings.weight, before["embeddings.word_embeddings.weight"])


def test_pairs_and_triplets_are_the_views(base, follows):
    follows(loss_of("simcse", base, base), triplets(12))


def test_without_projection_it_is_the_ranking_loss_of_sentence_transformers(base):
    model = sentence_transformer(base).double().eval()
    features = [model.preprocess(triplets(6)[column]) for column in ("anchor", "follows", "not")]
    ours = loss_of("simcse", base, base, model=model, projection="none").eval()
    model.eval()
    theirs = MultipleNegativesRankingLoss(model)
    torch.testing.assert_close(ours(features), theirs(features, None), atol=1e-9, rtol=0)


def test_each_data_set_trains_its_loss(base, tmp_path):
    model = sentence_transformer(base, longest=LONGEST)
    losses = {name: loss_of(name, base, base, model=model) for name in ("simcse", "diffcse")}
    heads = {name: {key: tensor.clone() for key, tensor in loss.heads().items()} for name, loss in losses.items()}
    rows = DatasetDict({name: sentences(12) for name in losses})
    trainer = train_in_trainer(losses["simcse"], tmp_path, rows, wrap=lambda *_: losses)
    for name, loss in losses.items():
        moved = [key for key, tensor in loss.heads().items() if not torch.equal(tensor, heads[name][key])]
        assert any(key.startswith("projection") for key in moved), name
    assert set(losses["diffcse"].parts.take()) == {"contrastive", "rtd"}
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert '"method": "diffcse"' in card and "chuang2022diffcse" in card


@pytest.mark.parametrize("name", [*SOME, "sgopt", "contrastive_tension"])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(name, base, tmp_path):
    def train(directory, resume=None, **arguments):
        loss = loss_of(name, base, base)
        callbacks = [TrainingCallback(loss)]
        options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "dataloader_num_workers": 0}
        train_in_trainer(
            loss, directory, sentences(16), callbacks=callbacks, resume=resume, **{**options, **arguments}
        )
        return loss

    uninterrupted = train(tmp_path)
    resumed = train(tmp_path, resume=str(tmp_path / "checkpoint-2"))
    assert_same_weights(resumed, uninterrupted.trained, atol=0)


@pytest.mark.parametrize(("projection", "warned"), [("tanh", True), ("none", False)])
def test_a_resumed_training_without_the_callback_warns_of_new_heads(base, tmp_path, caplog, projection, warned):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    train_in_trainer(loss_of("simcse", base, base, projection=projection), tmp_path, sentences(8), **options)
    assert "heads" not in caplog.text, "it began anew"
    loss = loss_of("simcse", base, base, projection=projection)
    train_in_trainer(loss, tmp_path, sentences(8), resume=str(tmp_path / "checkpoint-1"), **options)
    lines = [record.getMessage() for record in caplog.records if "heads" in record.getMessage()]
    assert len(lines) == warned
    assert all("heads of the loss are new" in line and "TrainingCallback(loss)" in line for line in lines)


@pytest.mark.parametrize("kind", ["FSDP", "DeepSpeed"])
def test_a_sharded_model_is_refused(base, kind, monkeypatch):
    monkeypatch.setenv(f"ACCELERATE_USE_{kind.upper()}", "true")  # as `accelerate launch` and trainers do
    loss = loss_of("simcse", base, base)
    with pytest.raises(UserError, match=f"{kind}: the losses cannot train a sharded model; train without it"):
        loss([loss.model.preprocess(["the cat", "the dog"])])


def test_a_checkpoint_without_the_heads_is_not_resumed(base, tmp_path):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    train_in_trainer(loss_of("simcse", base, base), tmp_path, sentences(8), **options)
    loss = loss_of("simcse", base, base)
    with pytest.raises(UserError, match="others have no heads"):
        callbacks = [TrainingCallback(loss)]
        resume = str(tmp_path / "checkpoint-1")
        train_in_trainer(loss, tmp_path, sentences(8), callbacks=callbacks, resume=resume, **options)


@pytest.mark.parametrize("adapted", [False, True])
def test_the_heads_of_another_checkpoint_are_not_loaded(base, tmp_path, adapted):
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}

    def train(directory, rows, resume=None):
        model = sentence_transformer(base, longest=LONGEST)
        if adapted:
            model.add_adapter(LoraConfig(r=2, target_modules=["query", "value"]))
        loss = loss_of("simcse", base, base, model=model)
        callbacks = [TrainingCallback(loss)]
        train_in_trainer(loss, tmp_path / directory, rows, callbacks=callbacks, resume=resume, **options)

    train("one", sentences(8))
    train("one", sentences(8), resume=str(tmp_path / "one" / "checkpoint-2"))
    train("other", sentences(16))
    with pytest.raises(UserError, match="its heads are of another encoder; set output_dir"):
        train("other", sentences(8), resume=str(tmp_path / "one" / "checkpoint-2"))
