"""Two processes share a directory or a cache: one lock holder, and readers find the old content or the new."""

import itertools
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from csezoo.training.cli.options import refuse_unwritable
from csezoo.training.data.collation import tokenize_once
from csezoo.training.data.texts import load_sentences
from csezoo.training.errors import UserError
from csezoo.training.files import (
    empty_target,
    locked,
    new_directory,
    recover_directory,
    replace_directory,
    replace_file,
)
from csezoo.training.loading.tokenizers import load_tokenizer
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.interpreters import CONTEXT, run_python
from tests.training.faults import train_in_child
from tests.training.runs import command_line


def test_a_second_run_in_the_same_directory_is_refused(tiny, tmp_path):
    with locked(tmp_path / "run"):
        code, err = train_in_child(command_line(tiny(max_steps=1)), tmp_path)
    assert code == 2 and "Traceback" not in err
    assert f"error: output_dir: another process is training in {tmp_path / 'run'}; wait for it" in err
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"], "the refused run changed nothing"


def test_a_link_in_a_circle_is_refused_and_stays(tmp_path):
    link = tmp_path / "results.json"
    link.symlink_to(link)
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(link, "{}")
    with pytest.raises(UserError, match="out: .* cannot be written"):
        refuse_unwritable(str(link))
    assert link.is_symlink() and len(list(tmp_path.iterdir())) == 1
    other = tmp_path / "other.json"
    other.symlink_to(tmp_path / "not yet")
    replace_file(other, "{}")
    assert other.read_text() == "{}"


def test_a_process_may_lock_its_directory_again(tmp_path):
    with locked(tmp_path), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def _count_tokens(train_file, base, barrier, counts) -> None:
    barrier.wait()
    sentences = load_sentences(make_recipe({"train_file": train_file}))
    rows = tokenize_once(sentences, tokenizer=load_tokenizer(base), length=32)
    counts.put((len(rows), sum(map(len, rows["0"]))))


def test_two_processes_that_fill_the_same_cache_read_the_same_rows(bases, tmp_path):
    """Each sentence has seven words, so the expected counts are known."""
    train_file = tmp_path / "new.txt"  # not in the cache yet
    train_file.write_text("\n".join(SENTENCES * 20) + "\n", encoding="utf-8")
    barrier, counts = CONTEXT.Barrier(2), CONTEXT.Queue()
    arguments = (str(train_file), str(bases["bert"]), barrier, counts)
    processes = [CONTEXT.Process(target=_count_tokens, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    assert [counts.get(timeout=120) for _ in processes] == [(20 * len(SENTENCES), 20 * 7 * len(SENTENCES))] * 2
    for process in processes:
        process.join(timeout=60)


def save_numbered(directory: Path, number: int) -> None:
    directory.mkdir()
    save_file({"a": torch.full((20_000,), float(number))}, directory / "model.safetensors")
    replace_directory(directory, directory.with_name("best"))


def test_a_reader_finds_a_complete_repository_or_none(tmp_path):
    save_numbered(tmp_path / "partial", 0)
    enough = threading.Event()

    def write():
        for number in itertools.count(1):
            save_numbered(tmp_path / "partial", number)
            if enough.is_set():
                return

    writer, seen = threading.Thread(target=write), set()
    writer.start()
    while len(seen) < 50:
        try:
            values = load_file(tmp_path / "best" / "model.safetensors")["a"]
        except (FileNotFoundError, RuntimeError) as error:  # torch opens it a second time
            assert "No such file" in str(error)
            continue
        assert len(set(values.tolist())) == 1, "the reader found a mix of two models"
        seen.add(values[0].item())
    enough.set()
    writer.join()


def test_a_replacement_interrupted_between_its_renames_is_undone(tmp_path):
    save_numbered(tmp_path / "partial", 1)
    (tmp_path / "best").rename(tmp_path / "best.old")
    recover_directory(tmp_path / "best")
    assert (tmp_path / "best" / "model.safetensors").is_file()
    recover_directory(tmp_path / "best")  # nothing to do


def test_a_failed_replacement_keeps_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    replace_file(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "old"


def test_a_new_directory_changes_nothing_beside_it(tmp_path):
    for name in ("out.old", "out.partial"):  # a user's, with the names of csezoo's own
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("kept", encoding="utf-8")
    (tmp_path / "out").mkdir()
    with new_directory(empty_target(str(tmp_path / "out"))) as partial:
        (partial / "model").write_text("complete", encoding="utf-8")
    with pytest.raises(KeyboardInterrupt), new_directory(empty_target(str(tmp_path / "failed"))) as partial:
        (partial / "model").write_text("half", encoding="utf-8")
        raise KeyboardInterrupt
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"out/model", "out.old/thesis.txt", "out.partial/thesis.txt"}
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.old", "out.partial"}


def test_a_new_directory_has_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        with new_directory(empty_target(str(tmp_path / "out"))):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750


def test_a_new_directory_may_be_named_by_a_link_and_is_not_put_over_files(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    with new_directory(empty_target(str(tmp_path / "out"))) as partial:
        (partial / "model").write_text("complete", encoding="utf-8")
    assert (tmp_path / "out").is_symlink() and (tmp_path / "disk" / "model").is_file()
    target = empty_target(str(tmp_path / "new"))
    with pytest.raises(UserError, match=r"new cannot be replaced \(.*not empty.*\); give a new directory"):
        with new_directory(target) as partial:
            (partial / "model").write_text("complete", encoding="utf-8")
            target.mkdir()
            (target / "thesis.txt").write_text("written meanwhile", encoding="utf-8")
    assert [path.name for path in target.iterdir()] == ["thesis.txt"]


def _write_and_be_killed(target, barrier) -> None:
    with new_directory(target) as partial:
        (partial / "model.safetensors").write_bytes(b"0" * 1000)
        barrier.wait(60)
        barrier.wait(60)  # until the end


def test_what_a_killed_process_left_is_deleted_by_the_next_and_not_what_a_running_one_writes(tmp_path):
    barrier, target = CONTEXT.Barrier(2), tmp_path / "out"
    writer = CONTEXT.Process(target=_write_and_be_killed, args=(target, barrier))
    writer.start()
    barrier.wait(60)
    (left,) = tmp_path.iterdir()
    (tmp_path / ".out.mine.partial").mkdir()
    with new_directory(tmp_path / "other"), pytest.raises(UserError), new_directory(target):
        assert left.is_dir(), "it is still written"
        raise UserError("no second copy")
    writer.kill()
    writer.join()
    assert left.is_dir()
    with new_directory(target):
        assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "other", ".out.mine.partial"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_file_is_replaced_leaves_nothing_beside_it(tmp_path, number):
    code = f"""
import os, signal, sys
from pathlib import Path
from csezoo.training.errors import exit_with_one_line
from csezoo.training.files import replace_file
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored
sys.addaudithook(lambda event, _: os.kill(os.getpid(), {int(number)}) if event == "os.rename" else None)
with exit_with_one_line():
    replace_file(Path({str(tmp_path / "results.json")!r}), "new")
"""
    assert run_python("-c", code).returncode == 128 + number
    assert {path.name for path in tmp_path.iterdir()} <= {"results.json"}
