"""From an item to its runs: subsets, seeds, shared runs, profiles, estimates."""

import re
import shutil
from pathlib import Path

import pytest

from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.files import write_json
from csezoo.training.recipes import load_recipe
from csezoo.training.recipes.reading import parse_overrides
from csezoo.training.reproducing.estimates import estimate
from csezoo.training.reproducing.manifests import load_item
from csezoo.training.reproducing.measuring import finished, read_results, write_complete
from csezoo.training.reproducing.plan import plan, run_of
from csezoo.training.reproducing.profiles import Profile, load_profile
from csezoo.training.reproducing.reports import describe, unique_runs

OUT = Path("out")
BERT = "google-bert/bert-base-uncased"
WIKI = "princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt"
NLI = "princeton-nlp/datasets-for-simcse/nli_for_simcse.csv"


def runs(item, **options):
    return unique_runs(plan(load_item(item), OUT, **options))


def test_a_row_on_a_share_of_the_labels_has_a_run_for_each_subset_and_seed():
    (row,) = plan(load_item("diffaug/table-2"), OUT, rows=["DiffAug, 1 %"])[:1]
    assert len({run.directory for run in row.runs}) == 15
    assert {(run.recipe.fraction_seed, run.recipe.seeds[0]) for run in row.runs} == {
        (subset, seed) for subset in range(5) for seed in (1, 2, 3)
    }


def test_tables_share_the_runs_of_the_same_resolved_recipe():
    shared = {run.directory for run in runs("diffcse/table-7")} & {run.directory for run in runs("diffcse/table-8")}
    assert len(shared) == 1  # 30 % of the words is λ = 0.005
    assert {run.directory for run in runs("diffcse/table-4")} <= {
        run.directory for run in runs("diffcse/table-15")
    } | {run.directory for run in runs("diffcse/table-4", rows=["all three"])}


def test_rows_seeds_and_keys_can_be_chosen():
    chosen = plan(
        load_item("diffcse/table-5"), OUT, rows=["DIFFCSE*"], seeds=[7, 8, 7], overrides={"learning_rate": "1e-5"}
    )
    assert [row.row.name for row in chosen] == ["DiffCSE with BatchNorm", "DiffCSE without BatchNorm"]
    assert [run.recipe.seeds for run in chosen[0].runs] == [[7], [8]]
    assert chosen[0].reasons == ["other learning_rate than in the paper"]
    with pytest.raises(UserError, match="no row 'nothing' in diffcse/table-5; there are DiffCSE with BatchNorm;"):
        plan(load_item("diffcse/table-5"), OUT, rows=["nothing"])


def test_a_bare_no_of_yaml_reaches_the_training_as_the_word():
    name, values = "simcse-bert-base-uncased", {"mixed_precision": False}
    run = run_of(name, load_recipe(name, values), values, 1, OUT)
    assert parse_overrides(run.command()[1:])["mixed_precision"] == "no"


def test_a_row_is_named_exactly_although_other_names_contain_its_name():
    (row,) = plan(load_item("prdsimcse/table-9"), OUT, rows=["one-[CLS]"])
    assert row.row.name == "one-[CLS]"
    (row,) = plan(load_item("prdsimcse/table-14"), OUT, rows=["20 %"])
    assert row.row.label == "20 %"


def test_another_model_in_a_directory_of_the_same_name_is_measured_again(tmp_path, monkeypatch, bases):
    """The same words name another directory from elsewhere, and the weights in a directory may change."""
    item, made = load_item("diffaug/table-1"), set()
    for place, kind in (("a", "bert"), ("b", "roberta")):
        shutil.copytree(bases[kind], tmp_path / place / "m1")
        monkeypatch.chdir(tmp_path / place)
        Path("p.yaml").write_text("models: {google-bert/bert-base-uncased: m1}", encoding="utf-8")
        rows = plan(item, OUT, rows=["*BERT CLS"], profile=load_profile("p.yaml"))
        made |= {run.directory for row in rows for run in row.runs}
    assert len(made) == 2


def test_a_row_that_needs_what_is_not_public_runs_only_if_it_is_named():
    item = load_item("sgopt/appendix-a.2")
    (row,) = plan(item, OUT)
    assert row.runs == [] and row.reasons[0].startswith("not run: back-translations")
    (row,) = plan(item, OUT, rows=["contrastive BT"], seeds=[1], overrides={"train_file": "pairs.csv"})
    assert row.runs[0].recipe.train_file == "pairs.csv"


def write_profile(tmp_path, text):
    for name in ("base", "senteval"):
        (tmp_path / name).mkdir()
    (tmp_path / "wiki.txt").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "nli.csv").write_text("p,e,c\na,b,c\n", encoding="utf-8")
    (tmp_path / "profile.yaml").write_text(text, encoding="utf-8")
    return str(tmp_path / "profile.yaml")


def test_a_profile_replaces_models_and_data_and_caps_updates(tmp_path, monkeypatch):
    text = f"""
description: small
models: {{{BERT}: base}}
datasets:
  {WIKI}: {{file: wiki.txt}}
  {NLI}: {{file: nli.csv, columns: {{sent0: p, sent1: e, hard_neg: c}}}}
data: senteval
max_updates: 100
transfer_rows: 1000
set: {{eval_steps: 10}}
"""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    profile = load_profile(write_profile(tmp_path, text))
    (row,) = plan(load_item("diffaug/table-3"), OUT, rows=["same"], seeds=[1], profile=profile)
    recipe = row.runs[0].recipe
    assert recipe.base_model == "../base", "results must not tell the directories of a machine"
    assert (recipe.train_file, recipe.dataset) == ("../wiki.txt", None)
    assert (recipe.nli_file, recipe.nli_columns) == ("../nli.csv", ["p", "e", "c"])
    assert (recipe.max_steps, recipe.nli_steps, recipe.eval_steps) == (100, 100, 10)
    assert recipe.eval_data == "../senteval" and profile.transfer_rows == 1000
    assert "(small)" in row.reasons[0] and "base_model" in row.reasons[0]
    # The words of the command resolve to the same recipe.
    words = dict(word.removeprefix("--").split("=", 1) for word in row.runs[0].command()[1:])
    assert load_recipe(row.row.recipe, {**words, "output_dir": None}) == recipe


def test_a_run_has_one_directory_however_its_data_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plans = set()
    for data in ("senteval", "senteval/", "./senteval", str(tmp_path / "senteval")):
        main(["reproduce", "diffcse/table-5", "--data", data, "--dry-run"])
        plans.add(capsys.readouterr().out)
    (shown,) = plans
    assert "--eval_data=senteval " in shown
    assert load_profile(None, "hub") == load_profile(None)


def test_fewer_rows_of_transfer_tasks_are_a_reason(tmp_path):
    limited, cls = Profile(transfer_rows=1000), ["BERT CLS"]
    (row,) = plan(load_item("diffcse/table-2"), OUT, rows=cls, profile=limited)
    assert row.reasons[-1] == "at most 1000 rows of each part of a transfer task"
    (questions,) = plan(load_item("prdsimcse/table-12"), OUT, rows=["PrdSimCSE"], profile=limited)[:1]
    assert questions.reasons == row.reasons, "TREC's questions by their length"
    (dev,) = plan(load_item("prdsimcse/table-8"), OUT, rows=["length in words"], profile=limited)
    assert dev.reasons == [], "it has no column of transfer tasks"


def test_what_is_measured_on_other_data_is_measured_again(tmp_path):
    item, made = load_item("diffcse/table-2"), []
    for profile in (Profile(), Profile(transfer_rows=1000), Profile(data="here"), Profile(data="./here")):
        (row,) = plan(item, tmp_path, rows=["BERT CLS"], profile=profile)
        made += row.runs
    made[0].directory.mkdir(parents=True)
    states = []
    for run in made[:3]:
        write_complete(run, ["transfer"], [{"suite": "transfer", "task": "MR", "value": 80.0}])
        states.append([finished(each, item.columns) for each in made])
    assert states == [[True, False, False, False], [True, True, False, False], [True, True, True, True]]
    assert made[0].evaluation == "evaluation.json" and len({run.directory for run in made}) == 1


def test_a_suite_that_was_begun_is_measured_to_its_end(tmp_path):
    """An interrupted evaluation leaves the first tasks of a suite in the file. Their mean is not that of the suite."""
    item = load_item("diffcse/table-2")
    ((run,),) = (row.runs for row in plan(item, tmp_path, rows=["BERT CLS"]))
    run.directory.mkdir(parents=True)
    begun = [{"suite": "transfer", "task": "MR", "value": 80.0}]
    write_json(run.directory / run.evaluation, {"model": "m", "results": begun})
    assert not finished(run, item.columns) and read_results(run) == []
    later = [{"suite": "transfer", "task": task, "value": 70.0} for task in ("MR", "CR")]
    write_complete(run, ["transfer"], later)
    assert finished(run, item.columns) and read_results(run) == later, "each task once"


def test_fine_tuning_with_other_settings_is_another_result():
    (first,) = plan(load_item("l2pcsr/table-4"), OUT, rows=["BERT-base"])
    (second,) = plan(load_item("sgopt/table-10"), OUT, rows=["BERT-base"])
    assert first.runs[0].directory == second.runs[0].directory
    assert first.runs[0].glue != second.runs[0].glue


def test_a_profile_keeps_a_recipe_that_trains_nothing():
    assert Profile(max_updates=9).overrides(load_recipe("untrained-bert-base-uncased-first-last-mean")) == {
        "max_steps": 0
    }


@pytest.mark.parametrize(
    "text, message",
    [
        ("modles: {}", "unknown key 'modles'; it must be one of description, models"),
        ("models: {a: nowhere}", "nowhere does not exist"),
        ("models: [a, b]", "models: ['a', 'b'] is not a mapping; give NAME: DIRECTORY"),
        ("models: {a: 3}", "models: a: 3 is not text"),
        ("datasets: wiki.txt", "datasets: 'wiki.txt' is not a mapping; give NAME: {file: FILE}"),
        ("datasets: {a: wiki.txt}", "datasets: a: 'wiki.txt' is not a mapping; give {file: FILE}"),
        ("datasets: {a: {columns: {x: y}}}", "datasets: a: it has no file; give {file: FILE}"),
        ("datasets: {a: {file: wiki.txt, colums: {}}}", "datasets: a: unknown key 'colums'; it must be one of file"),
        ("datasets: {a: {file: [wiki.txt]}}", "datasets: a: file: ['wiki.txt'] is not text"),
        ("datasets: {a: {file: wiki.txt, columns: [x]}}", "columns: ['x'] is not a mapping; give THEIRS: YOURS"),
        ("datasets: {a: {file: wiki.txt, columns: {x: 1}}}", "columns: x: 1 is not text"),
        ("data: [senteval]", "data: ['senteval'] is not text"),
        ("max_updates: many", "max_updates: 'many' is not a whole number"),
        ("transfer_rows: 10", "transfer_rows: 10 must be at least 1000"),
        ("set: eval_steps", "set: 'eval_steps' is not a mapping; give KEY: VALUE"),
        ("set: {output_dir: here}", "set: output_dir is given in the command, not in a profile"),
        ("description: 3", "description: 3 is not text"),
    ],
)
def test_a_mistake_in_a_profile_is_named(tmp_path, text, message):
    path = write_profile(tmp_path, text)
    with pytest.raises(UserError, match=re.escape(f"{path}: ")) as error:
        load_profile(path)
    assert message in str(error.value)


def test_estimates_count_the_updates_of_both_stages():
    cost = estimate(load_recipe("diffaug-bert-base-uncased-semi"))
    assert cost.updates == 3907 + 2000  # a million sentences in batches of 256, and stage 1
    longer = estimate(load_recipe("diffaug-bert-base-uncased-semi", {"epochs": 2}))
    assert longer.updates == 2 * 3907 + 2000 and longer.hours > cost.hours
    large = estimate(load_recipe("simcse-bert-large-uncased"))
    assert large.gigabytes > estimate(load_recipe("simcse-bert-base-uncased")).gigabytes
    assert estimate(load_recipe("contrastive-bt-bert-base-uncased")).updates is None  # its file is not given


def test_estimates_count_the_passes_and_encoders_that_a_method_says_it_needs():
    def of(method, **keys):
        return estimate(load_recipe("simcse-bert-base-uncased", {"method": method, **keys}))

    simcse, l2pcsr = of("simcse"), of("l2pcsr", inner_steps="2")
    assert l2pcsr.hours == pytest.approx(3 * simcse.hours), "two inner steps and the update"
    both = of("l2pcsr+diffcse", inner_steps="2", generator="distilbert/distilbert-base-uncased")
    assert both.hours == pytest.approx((3 + 1 / 2 + 1 / 12) * simcse.hours)
    weights = 110e6 * 4 / 1e9
    assert of("contrastive_tension").gigabytes == pytest.approx(simcse.gigabytes + 4 * weights), "a second encoder"
    one_text = of("isbert", pooling="mean", projection="none").gigabytes
    assert of("sgopt").gigabytes == pytest.approx(one_text + weights), "the frozen twin; one text of a row is trained"


def test_estimates_round_batches_and_updates_as_a_run_does(tmp_path):
    (tmp_path / "train.txt").write_text("a sentence\n" * 10, encoding="utf-8")
    keys = {"train_file": str(tmp_path / "train.txt"), "batch_size": "4", "gradient_accumulation_steps": "2"}
    assert estimate(load_recipe("simcse-bert-base-uncased", {**keys, "epochs": "2"})).updates == 3


def test_estimates_count_labelled_triplets_and_accumulated_batches():
    def of(**keys):
        return estimate(load_recipe("simcse-nli-then-wiki-bert-base-uncased", {"batch_size": "64", **keys}))

    sentences = estimate(load_recipe("simcse-bert-base-uncased", {"batch_size": "64", "max_steps": "100"}))
    triplets = of(nli_steps="100", max_steps="0")
    assert triplets.hours == pytest.approx(1.5 * sentences.hours), "three texts, not two"
    twice = of(nli_steps="100", max_steps="0", gradient_accumulation_steps="2")
    assert twice.hours == pytest.approx(2 * triplets.hours)
    epoch = of(nli_steps="0", nli_epochs="1", max_steps="0", gradient_accumulation_steps="4")
    assert epoch.updates == -(-275_601 // (64 * 4))
    average = of(ema_decay="0.9")
    assert average.gigabytes == pytest.approx(of().gigabytes + 110e6 * 4 / 1e9), "a second encoder, not trained"


def test_a_dry_run_shows_each_command_with_its_cost():
    item = load_item("diffcse/table-5")
    text = describe(item, plan(item, OUT, rows=["SimCSE without BatchNorm"]))
    assert "csezoo train simcse-bert-base-uncased --seeds=42 --output_dir=out/runs/simcse-bert-base-uncased-" in text
    assert "updates 15,625  hours" in text
    assert "1 runs to train, 0 models to evaluate; 15,625 updates" in text
