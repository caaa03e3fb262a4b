"""Labelled pairs before, beside or without the contrastive loss; early stopping and runs without updates."""

import json

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import AutoModel

from csezoo.modeling.contrastive.flow import Flow, flow_loss
from csezoo.modeling.contrastive.natural_language_inference import NLIClassifier, nli_loss
from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.methods.simcse.model import SimCSEModel
from csezoo.training.data.texts import load_labelled, load_sentences
from csezoo.training.errors import UserError
from csezoo.training.loop.background import BackgroundWriter
from csezoo.training.loop.best_model import BestModel
from csezoo.training.loop.building import build
from csezoo.training.loop.training_log import TrainingLog
from csezoo.training.publishing.fingerprints import verify_repository
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.training.runs import lines, train, values

LABELS = ("entailment", "neutral", "contradiction")
# Supervised PromptBERT.
DENOISED = {"pooling": "prompt", "prompts": ['This sentence of "{sentence}" means{mask}.'], "denoise": "always"}
DENOISED |= {"projection": "mlm_transform", "projection_at_test": True}


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"premise": a, "hypothesis": b, "label": LABELS[number % 3]}
        for number, (a, b) in enumerate(zip(SENTENCES[:40], SENTENCES[1:41], strict=True))
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return {"nli_file": str(path), "nli_columns": ["premise", "hypothesis", "label"], "nli_classes": 3}


def numpy_cross_entropy(logits, label):
    return np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label]


def test_nli_loss_on_triplets_is_the_mean_over_two_pairs_each():
    torch.manual_seed(0)
    classifier, z = NLIClassifier(4, 2).double(), torch.randn(5, 3, 4, dtype=torch.float64)
    weight, bias = (p.detach().numpy() for p in classifier.parameters())
    losses = []
    for u, entailed, contradicted in z.numpy():
        for v, label in ((entailed, 1), (contradicted, 0)):
            losses.append(numpy_cross_entropy(weight @ np.concatenate([u, v, abs(u - v)]) + bias, label))
    assert nli_loss(classifier, z, None).item() == pytest.approx(np.mean(losses), abs=1e-6)


def test_nli_loss_on_labelled_pairs_is_the_mean_cross_entropy():
    torch.manual_seed(0)
    classifier, z = NLIClassifier(4, 3).double(), torch.randn(6, 2, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    weight, bias = (p.detach().numpy() for p in classifier.parameters())
    losses = [
        numpy_cross_entropy(weight @ np.concatenate([u, v, abs(u - v)]) + bias, label)
        for (u, v), label in zip(z.numpy(), labels.tolist(), strict=True)
    ]
    assert nli_loss(classifier, z, labels).item() == pytest.approx(np.mean(losses), abs=1e-6)


def stages(run):
    """The learning rates and losses of each step, as logged."""
    return [line for line in lines(run) if "loss" in line]


def test_the_stage_on_labelled_pairs_is_first_and_has_its_rate_and_schedule(tiny, tmp_path, triplets):
    assert train(tiny(**triplets, nli_steps=3, nli_learning_rate=1e-2, nli_batch_size=8))["training"]["updates"] == 9
    logged = stages(tmp_path / "run")
    assert [line["step"] for line in logged] == list(range(1, 10))
    assert [line["learning_rate"] for line in logged[:3]] == pytest.approx([1e-2 * (6 - s) / 6 for s in range(3)])
    assert [line["learning_rate"] for line in logged[3:]] == pytest.approx([1e-3 * (6 - s) / 6 for s in range(6)])
    assert all(line["loss"] == line["nli"] for line in logged[:3])
    assert all(line["loss"] == line["contrastive"] for line in logged[3:])
    assert [line["step"] for line in lines(tmp_path / "run") if "dev" in line] == [0, 2, 3, 4, 6, 8, 9]


def test_nli_decay_steps_sets_the_length_of_the_first_schedule(tiny, tmp_path, triplets):
    train(tiny(**triplets, nli_steps=2, nli_learning_rate=1e-2, nli_decay_steps=4, max_steps=1))
    assert [line["learning_rate"] for line in stages(tmp_path / "run")[:2]] == pytest.approx([1e-2, 0.75e-2])


def test_a_schedule_shorter_than_its_stage_is_refused(tiny, triplets):
    with pytest.raises(UserError, match="ends after 6 of the 7 updates on labelled pairs; give --nli_decay_steps 7"):
        train(tiny(**triplets, nli_steps=7, max_steps=6))


def test_labelled_pairs_and_sentences_can_be_trained_jointly(tiny, tmp_path, pairs):
    train(tiny(nli_weight=0.5, **pairs))
    for line in stages(tmp_path / "run"):
        assert line["loss"] == pytest.approx(line["contrastive"] + 0.5 * line["nli"], rel=1e-5)


def test_a_run_can_train_on_labelled_pairs_only(tiny, tmp_path, pairs):
    recipe = tiny(train_file=None, max_steps=0, nli_epochs=1, nli_batch_size=16, projection="none", **pairs)
    assert train(recipe, pooling="mean")["training"]["updates"] == 3  # 40 pairs in batches of 16
    assert all(
        set(line) == {"step", "loss", "nli", "learning_rate", "padding_tokens"} for line in stages(tmp_path / "run")
    )


@pytest.mark.parametrize("keys", [{}, DENOISED], ids=["simcse", "promptbert"])
def test_a_stage_of_the_contrastive_objective_is_supervised_simcse(tiny, tmp_path, triplets, keys):
    """Same triplets, same order, same schedule: the same losses and weights."""
    stage = {"nli_objective": "contrastive", "nli_steps": 3, "nli_batch_size": 8, "nli_decay_steps": 3, "max_steps": 0}
    train(tiny(train_file=None, output_dir=str(tmp_path / "stage"), **triplets, **stage, **keys))
    supervised = {"train_file": triplets["nli_file"], "text_columns": triplets["nli_columns"], "batch_size": 8}
    train(tiny(output_dir=str(tmp_path / "supervised"), max_steps=3, **supervised, **keys))
    losses = [[line["loss"] for line in stages(tmp_path / name)] for name in ("stage", "supervised")]
    assert losses[0] == losses[1] and len(losses[0]) == 3
    one, other = (load_file(tmp_path / name / "best/model.safetensors") for name in ("stage", "supervised"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_contrastive_objective_reads_triplets(tiny, pairs):
    with pytest.raises(UserError, match="nli_objective: contrastive needs triplets; set nli_classes: 2"):
        train(tiny(nli_objective="contrastive", **pairs), nli_steps=1)


def labelled(path, rows, columns, classes, **keys):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return load_labelled(make_recipe({"nli_file": str(path), "nli_columns": columns, "nli_steps": 1, **keys}), classes)


def test_labels_are_names_or_numbers_and_rows_without_label_are_dropped(tmp_path):
    columns = ["premise", "hypothesis", "label"]
    for labels in (["entailment", "-", "contradiction", "neutral"], [0, -1, 2, 1]):
        rows = [{"premise": f"p{i}", "hypothesis": f"h{i}", "label": label} for i, label in enumerate(labels)]
        loaded = labelled(tmp_path / "a.jsonl", rows, columns, 3)
        assert loaded[:] == {"0": ["p0", "p2", "p3"], "1": ["h0", "h2", "h3"], "label": [1, 0, 2]}


@pytest.mark.parametrize("columns", [["premise", "hypothesis", "label"], ["label", "hypothesis", "gold"]])
def test_a_csv_file_may_have_a_column_named_label(tmp_path, columns):
    rows = [columns, ["p1", "h1", "entailment"], ["p2", "h2", "1"], ["p3", "h3", "-1"]]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(map(",".join, rows)) + "\n", encoding="utf-8")
    loaded = load_labelled(make_recipe({"nli_file": str(path), "nli_columns": columns, "nli_steps": 1}), 3)
    assert loaded[:] == {"0": ["p1", "p2"], "1": ["h1", "h2"], "label": [1, 2]}


def test_columns_of_labelled_data_must_be_named(tmp_path):
    with pytest.raises(UserError, match="nli_columns: name three columns of .*: premise, entailed"):
        labelled(tmp_path / "a.jsonl", [{"a": "x"}], None, 2)


def test_the_error_of_missing_labelled_data_names_the_option():
    with pytest.raises(UserError, match="nli_file: not given; give --nli_file .* or --nli_dataset"):
        load_labelled(make_recipe({"nli_columns": ["a", "b", "c"]}), 2)


def test_a_fraction_keeps_the_same_rows_and_another_seed_of_the_draw_others(tmp_path):
    rows = [{"a": f"p{i}", "b": f"e{i}", "c": f"c{i}"} for i in range(1000)]
    some, again, others = (
        labelled(tmp_path / "a.jsonl", rows, ["a", "b", "c"], 2, nli_fraction=0.1, fraction_seed=seed)["0"]
        for seed in (0, 0, 1)
    )
    assert some == again and set(some) != set(others)
    assert 70 < len(some) < 130 and 70 < len(others) < 130
    recipe = {"train_file": str(tmp_path / "a.jsonl"), "text_columns": ["a"], "train_fraction": 0.1}
    assert load_sentences(make_recipe(recipe))["0"] == some


@pytest.mark.parametrize(("name", "count"), [("stsb-sentences", 17_256), ("sts-sentences", 89_192)])
def test_sentences_of_graded_pairs_are_those_of_all_pairs(name, count, real_data):
    """ConSERT's README has the 89,192: of STS12 to STS16, STS-B and SICK-R, with or without a score."""
    recipe = make_recipe({"dataset": name, "eval_data": str(real_data / "data" / "senteval")})
    sentences = load_sentences(recipe)["0"]
    assert len(sentences) == count and "a plane is taking off ." in sentences[:]
    of_sick = "A group of kids is playing in a yard and an old man is standing in the background"
    assert (of_sick in sentences[:]) == (name == "sts-sentences")


@pytest.mark.parametrize("name", ["stsb-sentences", "sts-sentences"])
def test_sentences_of_graded_pairs_need_evaluation_data(name):
    with pytest.raises(UserError, match=f"{name} needs --eval_data"):
        load_sentences(make_recipe({"dataset": name, "eval_data": "none"}))


def test_endurance_counts_drops_between_evaluations(tmp_path):
    log = TrainingLog(tmp_path, Accelerator(cpu=True))
    best = BestModel(tmp_path, None, make_recipe({"endurance": 3}), None, log)
    for score, falls in ((50, 0), (60, 0), (59, 1), (59, 1), (61, 1), (60, 2), (80, 2)):
        best.count(score)
        assert best.times_lower == falls and not best.stopped, "never set back by a rise, never moved by a tie"
    best.count(79)
    assert best.stopped
    unlimited = BestModel(tmp_path, None, make_recipe({}), None, log)
    for score in range(100, 0, -1):
        unlimited.count(score)
    assert not unlimited.stopped


def test_patience_counts_evaluations_in_a_row_that_are_no_better_than_the_best(tmp_path):
    log = TrainingLog(tmp_path, Accelerator(cpu=True))
    best = BestModel(tmp_path, None, make_recipe({"patience": 3}), None, log)
    for score, without in ((50, 0), (60, 0), (59, 1), (60, 2), (61, 0), (60, 1), (59, 2)):
        best.count(score)
        best.highest = max(score, best.highest or 0)
        assert best.times_not_best == without and not best.stopped, "a tie is not better"
    best.count(61)
    assert best.stopped
    again = BestModel(tmp_path, None, make_recipe({"patience": 3}), None, log)
    again.restore(best.counters())
    assert again.stopped, "a run that has stopped stays stopped"


def test_patience_looks_at_the_highest_score_where_the_last_update_is_served(tmp_path, bases):
    recipe = make_recipe({"patience": 3, "select_by": "last", "base_model": str(bases["bert"]), "max_length": 32})
    best = BestModel(tmp_path, build(recipe), recipe, ["dev"], TrainingLog(tmp_path, Accelerator(cpu=True)))
    for step, (score, without) in enumerate(((60, 0), (50, 1), (55, 2), (52, 3))):
        with BackgroundWriter() as writer:
            best.evaluate(step, writer, score=score)
        assert (best.best_step, best.best_score, best.times_not_best) == (step, score, without)
    assert best.stopped


def test_without_dev_pairs_a_line_says_that_nothing_stops_the_run(tiny, dev_file, capsys):
    recipe = tiny(max_steps=2, eval_steps=1, patience=1, dev_file=None, test_file=str(dev_file))
    assert train(recipe)["training"]["updates"] == 2
    assert "patience, endurance: there are no dev pairs" in capsys.readouterr().err


def test_early_stopping_stops_a_run_and_it_stays_stopped(tiny, tmp_path):
    recipe = tiny(max_steps=40, eval_steps=1, endurance=1)
    updates = train(recipe, learning_rate=0.05)["training"]["updates"]
    dev = [line["dev"] for line in lines(tmp_path / "run") if "dev" in line]
    assert updates < 40 and len(dev) == updates + 1
    assert dev[-1] < dev[-2] and dev[1:-1] == sorted(dev[1:-1]), "stopped at the first fall after training began"
    (tmp_path / "run" / "results.json").unlink()  # as if it had been killed before its last evaluation
    assert train(recipe, learning_rate=0.05)["training"]["updates"] == updates


def test_without_updates_the_run_saves_the_pooled_base_model(tiny, bases, tmp_path):
    recipe = tiny(train_file=None, max_steps=0, pooling="first_last_mean", projection="none")
    assert train(recipe)["training"]["updates"] == 0
    served, base = (AutoModel.from_pretrained(each).state_dict() for each in (tmp_path / "run/best", bases["bert"]))
    for name, tensor in base.items():
        if not name.startswith("pooler."):
            assert torch.equal(served[name], tensor), name


def test_whitening_is_fitted_to_the_best_model_and_saved_with_it(bases, train_file, dev_file, tmp_path):
    train(values(bases["roberta"], train_file, dev_file, tmp_path / "run", max_steps=1, whitening=8))
    model = load_published(tmp_path / "run" / "best")
    vectors = model.encode(SENTENCES)
    assert vectors.shape == (len(SENTENCES), 8)
    np.testing.assert_allclose(np.cov(vectors.T, bias=True), np.eye(8), atol=1e-3)
    np.testing.assert_allclose(vectors.mean(0), 0, atol=1e-4)
    assert model.encode([]).shape == (0, 8)
    weights = load_file(tmp_path / "run" / "best" / "2_Dense" / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        "linear.weight": (8, 32),
        "linear.bias": (8,),
    }
    assert len(verify_repository(str(tmp_path / "run" / "best"))) == 3


def test_the_seed_whose_whitened_vectors_are_best_on_dev_is_published(tiny, tmp_path):
    """The run's own dev scores are of the vectors before the whitening."""
    results = train(tiny(max_steps=2, learning_rate=0.05), whitening=4, seeds=[1, 2, 3])
    scores = [result["value"] for result in results["results"] if result["task"].endswith("dev")]
    assert len(scores) == 3 and results["best_seed"] == 1 + scores.index(max(scores))
    assert [run["training"]["mapped_by"] for run in results["runs"]] == ["whitening"] * 3


def test_vectors_are_cut_to_dimensions_that_they_have(tiny):
    with pytest.raises(UserError, match="truncate_dim: 9 must be at most 8, the dimensions of the served vectors"):
        train(tiny(), whitening=8, truncate_dim=9)


def test_a_whitening_may_keep_a_part_of_the_variances_and_be_refined(tiny, tmp_path):
    recipe = tiny(max_steps=0, whitening=4)
    train(recipe, whitening_power=0.5)
    fitted = SimCSEModel.from_pretrained(tmp_path / "run" / "best").whitening
    changed = {**recipe, "output_dir": str(tmp_path / "refined"), "whitening_power": 0.5, "whitening_updates": 5}
    train(changed)
    refined = SimCSEModel.from_pretrained(tmp_path / "refined" / "best").whitening
    scales = fitted.kernel.norm(dim=0)  # Λ^(-1/4), so they grow as the variances fall
    assert torch.equal(scales, scales.sort().values) and scales[-1] < scales[0] * 100
    assert not torch.equal(refined.kernel, fitted.kernel)
    vectors = load_published(tmp_path / "refined" / "best").encode(SENTENCES)
    np.testing.assert_allclose(vectors.mean(0), 0, atol=1e-4)
    assert len(verify_repository(str(tmp_path / "refined" / "best"))) == 3


def test_a_flow_is_fitted_to_the_best_model_and_saved_with_it(tiny, train_file, tmp_path):
    train(tiny(max_steps=1, flow=True, flow_epochs=10))
    model = load_published(tmp_path / "run" / "best")
    texts = [*dict.fromkeys(train_file.read_text(encoding="utf-8").splitlines())]
    vectors = torch.from_numpy(model.encode(texts))
    (flow,), model.layers = model.layers, torch.nn.ModuleList()
    plain = torch.from_numpy(model.encode(texts))
    assert torch.allclose(flow(plain), vectors, atol=1e-3)
    assert flow_loss(flow, plain) < flow_loss(Flow(32, 32), plain) - 0.1
    assert len(verify_repository(str(tmp_path / "run" / "best"))) == 3
    assert model.config.model_type == "csezoo"  # no module of sentence-transformers is a flow


def test_a_flow_reads_all_columns_with_the_dropout_of_training(bases, dev_file, tmp_path):
    table, pairs = tmp_path / "pairs.csv", zip(SENTENCES[:20], SENTENCES[20:40], strict=True)
    table.write_text("first,second\n" + "\n".join(map(",".join, pairs)) + "\n", encoding="utf-8")
    keys = {"flow": True, "max_steps": 0, "dev_file": None}

    def scales(name, **changes):
        train(values(bases["bert"], table, dev_file, tmp_path / name, **keys, **changes))
        tensors = load_file(tmp_path / name / "best/model.safetensors")
        return torch.cat([tensor for name, tensor in sorted(tensors.items()) if name.endswith("norm.log_scale")])

    both = {"text_columns": ["first", "second"]}
    noisy, again = (scales(name, **both, flow_dropout=True) for name in ("noisy", "again"))
    assert torch.equal(noisy, again) and not torch.allclose(noisy, scales("plain", **both), atol=1e-3)
    with pytest.raises(UserError, match="flow: 20 sentences are too few"):
        scales("one", text_columns=["first"])


def test_whitening_to_too_many_dimensions_is_refused(tiny, tmp_path):
    recipe = tiny(max_steps=0, whitening=33)
    with pytest.raises(UserError, match="whitening: 33 must be at most 32, the dimensions"):
        train(recipe)
    few = {**recipe, "output_dir": str(tmp_path / "few"), "whitening": 20, "whitening_sentences": 5}
    with pytest.raises(UserError, match="give more training sentences, or a smaller --whitening"):
        train(few)
