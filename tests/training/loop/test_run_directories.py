"""Seeds are added to a run at any time, and several processes that share a disk train different ones at once."""

import shutil
import time
from pathlib import Path

import pytest
import yaml

from csezoo.training.errors import UserError
from csezoo.training.files import locked, read_json, write_json
from csezoo.training.loop.run_directories import OF_SEED, RUN_FILES, claim_run, seed_directory, seeds_locked
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import SENTENCES
from tests.interpreters import Python
from tests.training.faults import AtRecord, start_in_child, train_in_child
from tests.training.runs import command_line, lines, same_run, train, values


def keys(base, train_file, dev_file, output, **changes):
    """The keys of a run of two updates, from a recipe that a command line can name too."""
    changed = values(base, train_file, dev_file, output, max_steps=2, eval_steps=1, **changes)
    return load_recipe("simcse-bert-base-uncased", {**changed, "name": "simcse-bert-base-uncased"}).to_dict()


def arguments(recipe):
    return command_line({key: value for key, value in recipe.items() if value is not None})


@pytest.fixture
def recipe(bases, train_file, dev_file, tmp_path):
    return keys(bases["bert"], train_file, dev_file, tmp_path / "run")


@pytest.fixture(scope="module")
def whole(bases, train_file, dev_file, tmp_path_factory):
    """A run of the seeds 1, 2 and 3 in one command."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    train(keys(bases["bert"], train_file, dev_file, output, seeds=[1, 2, 3]))
    return output


def test_a_seed_draws_its_own_dropout(bases, dev_file, tmp_path):
    """In one batch of all sentences and without a head, nothing else depends on the seed."""
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES[:16]), encoding="utf-8")
    recipe = values(bases["bert"], tmp_path / "train.txt", dev_file, tmp_path / "run", max_steps=1)
    train(recipe, projection="none", seeds=[1, 2])
    first, second = ([x["loss"] for x in lines(tmp_path / "run" / f"seed-{seed}") if "loss" in x] for seed in (1, 2))
    assert abs(first[0] - second[0]) > 1e-3


def read(run: Path) -> dict:
    return read_json(run / "results.json")


def card(run: Path) -> str:
    """The card of `best/` without what differs from run to run: times, memory, where the run is."""
    text = (run / "best" / "README.md").read_text(encoding="utf-8").replace(str(run), "RUN")
    return "\n".join(
        line for line in text.splitlines() if not any(word in line for word in ("second", "minute", "GiB", "memory"))
    )


def equals_whole(run: Path, whole: Path, order: list[int]) -> None:
    """The seeds, summary, choice and card are those of one command with all seeds."""
    expected, results = read(whole), read(run)
    assert results["seeds"] == order and sorted(order) == expected["seeds"]
    for seed in order:
        same_run(run / f"seed-{seed}", whole / f"seed-{seed}")
    for ours, theirs in zip(results["summary"], expected["summary"], strict=True):
        assert ours == pytest.approx(theirs)
    assert results["best_seed"] == expected["best_seed"]
    assert yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))["seeds"] == order
    weights = "best/model.safetensors"
    assert (run / weights).read_bytes() == (run / f"seed-{results['best_seed']}" / weights).read_bytes()
    assert not {path.name for path in run.iterdir()} & {"metrics.jsonl", "checkpoints", "best.partial"}
    if order == expected["seeds"]:
        assert card(run) == card(whole)


def test_seeds_are_added_to_a_finished_run_of_one(recipe, whole, tmp_path, capsys):
    train(recipe, seeds=[1])
    weights = (tmp_path / "run" / "best" / "model.safetensors").read_bytes()
    capsys.readouterr()
    train(recipe, seeds=[1, 2, 3])
    out = capsys.readouterr()
    assert "(3 seeds)" in out.out and "is finished" in out.err
    assert (tmp_path / "run" / "seed-1" / "best" / "model.safetensors").read_bytes() == weights
    equals_whole(tmp_path / "run", whole, [1, 2, 3])


def test_seeds_are_added_to_an_interrupted_run(recipe, whole, tmp_path, train_up_to):
    train_up_to("step 2  loss", {**recipe, "seeds": [1]})
    train(recipe, seeds=[3])  # the first is not finished, so there is no mean yet
    assert read(tmp_path / "run" / "seed-3")["seed"] == 3 and not (tmp_path / "run" / "results.json").exists()
    train_up_to("step 2  loss", {**recipe, "seeds": [2]})
    train(recipe, seeds=[2, 1])
    equals_whole(tmp_path / "run", whole, [1, 3, 2])


def test_a_run_keeps_its_seeds_when_a_command_names_fewer(recipe, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    assert train(recipe, seeds=[2])["summary"][0]["n"] == 3
    equals_whole(tmp_path / "run", whole, [1, 2, 3])


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param([1], [2, 3], marks=pytest.mark.slow), ([1, 2, 3], [1, 2, 3])]
)
def test_two_processes_share_the_seeds_of_a_run(recipe, whole, tmp_path, first, second):
    processes = [
        Python("-m", "csezoo.training.train", *arguments({**recipe, "seeds": seeds})) for seeds in (first, second)
    ]
    done = [process.finish() for process in processes]
    assert [process.returncode for process in done] == [0, 0], [process.stderr for process in done]
    order = read(tmp_path / "run")["seeds"]
    equals_whole(tmp_path / "run", whole, order)
    trained = [process.stderr.count("step 2  dev") for process in done]
    assert sum(trained) == 3, "a seed was trained twice"


@pytest.mark.parametrize("last", ["first", pytest.param("second", marks=pytest.mark.slow)])
def test_the_mean_is_right_whichever_process_finishes_last(recipe, whole, tmp_path, last, train_up_to):
    """Seed 1 is trained in the run's own directory, until another process has added seeds."""
    alone, others = {**recipe, "seeds": [1]}, {**recipe, "seeds": [2, 3]}
    waits = AtRecord("step 1  dev", Wait(tmp_path / "go"))
    process = start_in_child(arguments(alone), tmp_path / "stderr.txt", waits)
    waits.strike.until_waiting()
    if last == "first":
        train(others)
        assert not (tmp_path / "run" / "results.json").exists()
        waits.strike.release()
        process.join(timeout=120)
    else:
        train_up_to("step 2  loss", others, occurrence=2)
        waits.strike.release()
        process.join(timeout=120)
        assert read(tmp_path / "run")["seeds"] == [1, 2]
        train(others)
    assert process.exitcode == 0
    equals_whole(tmp_path / "run", whole, [1, 2, 3])


class Wait:
    """Stops a process until a file is there; says that it has begun to wait with another file."""

    def __init__(self, path: Path):
        self.path, self.waiting = path, path.with_name("waiting")

    def __call__(self) -> None:
        self.waiting.touch()
        poll(self.path)

    def until_waiting(self) -> None:
        poll(self.waiting)

    def release(self) -> None:
        self.path.touch()


def poll(path: Path) -> None:
    for _ in range(2400):
        if path.exists():
            return
        time.sleep(0.05)
    raise TimeoutError(path)


def test_a_command_whose_seeds_are_all_taken_is_refused_and_changes_nothing(recipe, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "seed-2" / "results.json").unlink()
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*.*"))
    with locked(tmp_path / "run" / "seed-2"):
        code, err = train_in_child(arguments({**recipe, "seeds": [2]}), tmp_path)
    assert code == 2 and f"another process is training in {tmp_path / 'run' / 'seed-2'}; wait for it" in err
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*.*")) == before


def test_a_forced_change_keeps_the_seeds_of_a_run_and_overwriting_starts_again(tmp_path):
    run = tmp_path / "run"
    assert claim_run(run, make_recipe({"seeds": [1, 2]})) == [1, 2]
    (run / "seed-1" / "checkpoints" / "step-1").mkdir(parents=True)
    assert claim_run(run, make_recipe({"seeds": [3], "batch_size": 8, "force": True})) == [1, 2, 3]
    assert (run / "seed-1").is_dir()
    assert claim_run(run, make_recipe({"seeds": [3], "batch_size": 4, "overwrite": True})) == [3]
    assert not (run / "seed-1").exists()


def recorded(run: Path) -> dict[Path, bytes]:
    """What a run says of itself: its recipe and the results of its seeds and their mean."""
    return {path: path.read_bytes() for name in ("recipe.yaml", "results.json") for path in run.rglob(name)}


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"text_columns": ["nope"]}, "has no column nope"),
        ({"max_length": 500}, "max_length: 500 needs 500 positions"),
        ({"max_steps": 1}, "has more updates than the 1"),
        ({"optimizer": "rmsprop"}, "--force cannot resume with this change of the optimizer"),
        ({"select_by": "last"}, "select_by: --force cannot change it"),
    ],
)
def test_a_forced_change_that_is_refused_changes_nothing_of_a_run(recipe, whole, tmp_path, keys, line):
    run = shutil.copytree(whole, tmp_path / "run")
    before = recorded(run)
    with pytest.raises(UserError, match=line):
        train(recipe, seeds=[1, 2], force=True, **keys)
    assert recorded(run) == before and len(before) == 5


def test_a_forced_change_replaces_the_results_of_the_seeds_in_the_command(recipe, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    results = train(recipe, seeds=[2, 3], force=True, max_steps=3)
    assert [each["training"]["updates"] for each in results["runs"]] == [2, 3, 3]
    assert read(run / "seed-1") == read(whole / "seed-1")
    assert load_recipe(str(run / "recipe.yaml")).max_steps == 3


def test_a_forced_change_that_was_killed_is_made_by_the_same_command(recipe, whole, tmp_path, train_up_to):
    run = shutil.copytree(whole, tmp_path / "run")
    forced = {**recipe, "seeds": [1, 2], "max_steps": 3, "force": True}
    train_up_to("step 3  loss", forced)
    assert sorted(path.parent.name for path in run.rglob("results.json")) == ["seed-2", "seed-3"]
    assert [each["training"]["updates"] for each in train(forced)["runs"]] == [3, 3, 2]


def test_a_finished_seed_without_checkpoints_is_not_trained_anew_by_force(recipe, whole, tmp_path):
    """Checkpoints of a finished run may be deleted."""
    run = shutil.copytree(whole, tmp_path / "run")
    for name in ("checkpoints", "best_weights"):
        shutil.rmtree(run / "seed-1" / name)
    before = recorded(run)
    line = f"{run / 'seed-1'} is finished, and has no checkpoint that --force could resume .* or delete it"
    with pytest.raises(UserError, match=line):
        train(recipe, seeds=[1], force=True, learning_rate=1e-4)
    assert recorded(run) == before
    train(recipe, seeds=[1])


def test_a_finished_run_without_checkpoints_is_refused_to_another_recipe(tmp_path):
    claim_run(tmp_path, make_recipe({"seeds": [1]}))
    (tmp_path / "best").mkdir()
    (tmp_path / "results.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="has a run with another batch_size; .* --overwrite to start again"):
        claim_run(tmp_path, make_recipe({"seeds": [1], "batch_size": 8}))
    assert (tmp_path / "best").is_dir() and (tmp_path / "results.json").is_file()


@pytest.mark.parametrize("name", ["best", "seed-7"])
def test_files_that_no_run_wrote_are_deleted_only_by_overwrite(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"{tmp_path} has {name} without the recipe of its run; choose another"):
        claim_run(tmp_path, make_recipe({}))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    claim_run(tmp_path, make_recipe({"overwrite": True}))
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_files_whose_names_only_begin_as_those_of_seeds_are_kept(tmp_path):
    claim_run(tmp_path, make_recipe({"seeds": [1, 2]}))
    for name in ("seed-1", "seed-plots"):
        (tmp_path / name).mkdir()
    (tmp_path / "seed-notes.txt").touch()
    claim_run(tmp_path, make_recipe({"seeds": [3], "batch_size": 8, "overwrite": True}))
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml", "seed-plots", "seed-notes.txt"}


@pytest.mark.parametrize("key", ["overwrite", "force"])
def test_a_run_that_another_process_is_training_cannot_be_changed(recipe, whole, tmp_path, key):
    shutil.copytree(whole, tmp_path / "run")
    changed = {**recipe, "seeds": [1, 2, 3], "batch_size": 8, key: True}
    with locked(tmp_path / "run" / "seed-2"):
        code, err = train_in_child(arguments(changed), tmp_path)
    assert code == 2 and f"another process is training in {tmp_path / 'run' / 'seed-2'}; wait for it" in err
    assert (tmp_path / "run" / "seed-1" / "results.json").is_file()


def test_seeds_that_differ_in_more_than_the_seed_are_not_averaged(recipe, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "seed-2" / "results.json"
    results = read(path.parent)
    results["training"]["origin"]["code"] = "of another time"
    write_json(path, results)
    line = "seeds: seed 2 has another code than seed 1; undo the change, .*--force to average them anyway"
    with pytest.raises(UserError, match=line):
        train(recipe, seeds=[1])
    assert train(recipe, seeds=[1], force=True)["summary"][0]["n"] == 3


def test_a_seed_of_another_experiment_is_refused_before_it_is_trained(recipe, whole, tmp_path, bases):
    shutil.copytree(whole, tmp_path / "run")
    results = read(tmp_path / "run" / "seed-1")
    for seed in (1, 2, 3):
        results["training"]["origin"]["base_model"] = "of another time"
        write_json(tmp_path / "run" / f"seed-{seed}" / "results.json", results)
    with pytest.raises(UserError, match="seeds: seed 4 has another base_model than seed 1; "):
        train(recipe, seeds=[4])
    assert not (tmp_path / "run" / "seed-4" / "metrics.jsonl").exists()


def test_seeds_that_are_tested_on_other_pairs_are_refused(bases, train_file, dev_file, tmp_path):
    """The file has the same name as before, and other pairs."""
    pairs = tmp_path / "test.csv"
    shutil.copy(dev_file, pairs)
    recipe = keys(bases["bert"], train_file, dev_file, tmp_path / "run", test_file=str(pairs), seeds=[1])
    train(recipe)
    pairs.write_text("".join(pairs.read_text(encoding="utf-8").splitlines(keepends=True)[:30]), encoding="utf-8")
    with pytest.raises(UserError, match="seeds: seed 2 has another test pairs than seed 1; "):
        train(recipe, seeds=[2])


@pytest.mark.parametrize("content", ["", "[]", '{"seed": 1}'])
def test_broken_results_are_one_line_and_written_again(recipe, whole, tmp_path, content):
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "seed-2" / "results.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="seed-2/results.json"):
        train(recipe, seeds=[1])
    path.unlink()
    train(recipe, seeds=[2])
    equals_whole(tmp_path / "run", whole, [1, 2, 3])


def test_a_recipe_of_ones_own_may_be_in_the_directory(recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("batch_size: 8\nseeds: 3\n", encoding="utf-8")
    train(recipe, seeds=[1])
    assert read(tmp_path / "run")["seed"] == 1


def test_a_move_that_was_interrupted_is_finished(recipe, judging_file, tmp_path):
    """Killed between two renames, after another seed was added to a run of one."""
    run = tmp_path / "run"
    train(recipe, seeds=[1], test_file=str(judging_file))
    recorded = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    (run / "recipe.yaml").write_text(yaml.safe_dump({**recorded, "seeds": [1, 2]}), encoding="utf-8")
    assert seed_directory(run, [1, 2], 1) == run
    (run / "seed-1").mkdir()
    (run / "results.json").rename(run / "seed-1" / "results.json")
    with seeds_locked(run):
        assert seed_directory(run, [1, 2], 1) == run / "seed-1"
    moved = set(OF_SEED) - {"non_finite", "prefix_tuning.png"}
    assert moved <= {path.name for path in (run / "seed-1").iterdir()}
    assert not moved & {path.name for path in run.iterdir()} and set(OF_SEED) < set(RUN_FILES)


def test_seeds_of_a_command_that_trained_nothing_are_forgotten(recipe, tmp_path):
    with pytest.raises(UserError, match="could not be loaded"):
        train(recipe, seeds=[1, 2], base_model="no/such-model")
    train(recipe, seeds=[7])
    assert read(tmp_path / "run")["seed"] == 7, "in the run's own directory"
