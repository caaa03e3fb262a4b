"""A run stopped anywhere and by anything resumes, and ends like the uninterrupted run."""

import random
import signal
from functools import partial

import pytest
from accelerate import Accelerator

from csezoo.training.loop.checkpoints import step_of
from csezoo.training.loop.training_log import TrainingLog
from tests.interpreters import ROOT, run_two
from tests.methods import RUNS, run_keys
from tests.training.faults import AtRecord, KilledAtFile, fill_disk, kill_later, terminate, train_in_child
from tests.training.runs import LAUNCH_TWO, command_line, finish, lines, same_run, start, train

SETTINGS = {
    "simcse, masked language modelling, accumulated": {"mlm_weight": 0.1, "gradient_accumulation_steps": 2},
    "simcse, stream": {"streaming": True, "shuffle_buffer": 20},
    "simcse, stream in a worker": {"streaming": True, "shuffle_buffer": 20, "num_workers": 1},
    "simcse, early stopping": {"learning_rate": 0.05, "endurance": 1, "max_steps": 40},
    "simcse, bf16, batches by length": {"mixed_precision": "bf16", "length_window": 3, "mini_batch_size": 5},
    "simcse, adamw-transformers4": {"optimizer": "adamw-transformers4", "weight_decay": 0.1},
    "simcse, average of weights": {"ema_decay": 0.5},
    "simcse, soup of checkpoints": {"soup": 2},
    "simcse, rmsprop": {"optimizer": "rmsprop"},
}
# A method with one stage, one with two, one with a generator, and what reads or keeps something of its own.
FAST = {
    "simcse",
    "diffaug",
    "diffcse",
    "simcse, stream in a worker",
    "simcse, bf16, batches by length",
    "simcse, soup of checkpoints",
}
CASES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in (*RUNS, *SETTINGS)]


@pytest.fixture
def two(tiny, tmp_path):
    """A function that returns the keys of two runs, in the directories `whole` and `broken`."""

    def two(**changes):
        return [tiny(**changes, output_dir=str(tmp_path / name)) for name in ("whole", "broken")]

    return two


@pytest.mark.parametrize("name", CASES)
def test_every_method_resumes_bit_for_bit(name, bases, two, tmp_path, triplets, train_up_to):
    """Stopped after an update, between a dev score and its checkpoint, and (DiffAug) around the end of a stage."""
    keys = SETTINGS[name] if name in SETTINGS else run_keys(name, bases["bert"], triplets)
    whole, broken = two(**{"eval_steps": 1, **keys})
    train(whole)
    for step, kind in ((1, "loss"), (2, "dev"), (3, "dev"), (4, "loss")):
        if any(line["step"] == step for line in lines(tmp_path / "whole")):  # early stopping may come first
            train_up_to(f"step {step}  {kind}", broken)
    train(broken)
    same_run(tmp_path / "whole", tmp_path / "broken")


def test_resume_continues_only_the_interrupted_seed(two, tmp_path, train_up_to):
    whole, broken = two(seeds=[1, 2], max_steps=2, eval_steps=1)
    expected = train(whole)["summary"]
    train_up_to("step 2  loss", broken, occurrence=2)
    first = (tmp_path / "broken" / "seed-1" / "best" / "model.safetensors").stat().st_mtime_ns
    assert train(broken)["summary"] == expected
    assert (tmp_path / "broken" / "seed-1" / "best" / "model.safetensors").stat().st_mtime_ns == first
    for seed in ("seed-1", "seed-2"):
        same_run(tmp_path / "whole" / seed, tmp_path / "broken" / seed)


@pytest.mark.slow
def test_a_run_killed_many_times_ends_like_the_uninterrupted_one(two, tmp_path):
    """SIGKILL before changes of file names in the run's directory: in saves, prunings, `best/`, whitening, results."""
    whole, broken = two(max_steps=4, eval_steps=1, whitening=8, soup=2)
    train(whole)
    code, kills = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        fault = KilledAtFile(tmp_path / "broken", 3 + 13 * kills)
        code, err = train_in_child(command_line(broken), tmp_path, fault)
        kills += 1
    assert code == 0, err
    assert kills > 5
    same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.slow
def test_a_run_killed_while_checkpoints_are_written_ends_like_the_uninterrupted_one(two, tmp_path):
    """SIGKILLs at random moments after an evaluation: its checkpoint is written while the run trains on."""
    whole, broken = two(max_steps=50, eval_steps=1, soup=2)
    train(whole)
    draw, code, steps = random.Random(0), -signal.SIGKILL, []
    while code == -signal.SIGKILL and len(steps) < 20:
        fault = AtRecord("  dev ", occurrence=draw.randint(1, 4), strike=partial(kill_later, draw.uniform(0, 0.1)))
        code, err = train_in_child(command_line(broken), tmp_path, fault)
        steps.append(max((step_of(path) for path in tmp_path.glob("broken/checkpoints/step-*")), default=0))
    assert steps == sorted(steps) and len({*steps}) > 5, "few checkpoints were complete"
    if code != 0:
        code, err = train_in_child(command_line(broken), tmp_path)
    assert code == 0, err
    same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_keeps_the_last_checkpoint(two, tmp_path):
    whole, broken = two()
    train(whole)
    written = tmp_path / "broken" / "checkpoints" / "step-00000002"
    code, err = train_in_child(command_line(broken), tmp_path, AtRecord("step 3", partial(fill_disk, written)))
    assert code == 2 and "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"error: output_dir: {tmp_path / 'broken'} could not be written (File too large); free")
    assert [*written.parent.glob("step-*")] == [written]
    code, err = train_in_child(command_line(broken), tmp_path)
    assert code == 0 and "resumed from" in err
    same_run(tmp_path / "whole", tmp_path / "broken")


def test_sigterm_exits_with_143_and_says_where_the_run_resumes(tiny, tmp_path):
    recipe = tiny()
    code, err = train_in_child(command_line(recipe), tmp_path, AtRecord("step 1", terminate))
    assert (code, "Traceback" in err) == (143, False)
    assert err.strip().splitlines()[-1].endswith("the same command starts again, because there was no checkpoint yet")
    code, err = train_in_child(command_line(recipe), tmp_path, AtRecord("step 3", terminate))
    newest = tmp_path / "run" / "checkpoints" / "step-00000002"
    assert (code, "Traceback" in err) == (143, False)
    assert err.strip().splitlines()[-1] == f"stopped by a signal: the same command resumes from {newest}"


# Training that goes on after its third update only when it is stopped.
WAITS = """
import sys, time
from csezoo.training.train import main
from tests.training.faults import AtRecord
AtRecord("step 3  loss", lambda: time.sleep(300)).install()
main(sys.argv[1:])
"""
# 192 sentences: the fifth batch of an epoch is smaller. Each process reads a shard of 96, 20 for each batch.
STREAM = {"train_file": None, "dataset_file": "*.txt", "streaming": True, "stream_shards": True, "shuffle_buffer": 20}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, STREAM], ids=["", "shards of a stream"])
def test_two_processes_resume_bit_for_bit(two, train_file, tmp_path, changes):
    """Stopped by SIGTERM to the launcher, at the third update."""
    lines_of_file = train_file.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "shards").mkdir()
    for shard in range(2):
        (tmp_path / "shards" / f"{shard}.txt").write_text("".join(lines_of_file[shard::2]), encoding="utf-8")
    whole, broken = two(batch_size=40, eval_steps=1, dataset=str(tmp_path / "shards"), **changes)
    run_two("-m", "csezoo.training.train", *command_line(whole))
    (tmp_path / "waits.py").write_text(WAITS, encoding="utf-8")
    process = start(broken, *LAUNCH_TWO[:-2], str(tmp_path / "waits.py"), ACCELERATE_USE_CPU="true", PYTHONPATH=ROOT)
    while process.poll() is None and "step 2  dev" not in process.stderr.readline():
        pass
    process.terminate()
    code, _, err = finish(process)
    assert code != 0 and "stopped by a signal: the same command resumes from" in err
    _, err = run_two("-m", "csezoo.training.train", *command_line(broken))
    assert "resumed from" in err
    same_run(tmp_path / "whole", tmp_path / "broken")


def test_restored_metrics_end_at_the_checkpoint(tmp_path, caplog):
    log = TrainingLog(tmp_path, Accelerator(cpu=True))
    logged = [f'{{"step": {step}}}\n' for step in range(1, 6)]
    log.metrics.write_text("".join(logged), encoding="utf-8")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metrics.jsonl").write_text("".join(logged[:4]), encoding="utf-8")
    log.restore(checkpoint, {**log.counters(), "step": 4})
    assert log.metrics.read_text(encoding="utf-8") == "".join(logged[:4])
    assert not caplog.records
