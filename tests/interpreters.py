"""Runs Python in processes that need not import the large libraries: each is forked from one that has.

torch and what transformers needs beside it take seconds to import, and dozens of tests need a process of their own.
Whatever reads the environment when it is imported (`huggingface_hub`, transformers, datasets, accelerate, this
project) is not among them: a process reads its own. Where the interpreter itself is what is tested (its hash seed, its
memory, its launcher), start one with `subprocess`.
"""

import faulthandler
import multiprocessing
import os
import random
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

LONGEST = 300  # seconds; a process that takes longer says where it is, and ends
ROOT = str(Path(__file__).parents[1])
# Taken before any test adds to it: transformers adds the directory of the code that it downloads.
PATHS = [path for path in sys.path if path not in ("", ROOT)]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "matplotlib.figure",
        "pandas",
        "pyarrow.parquet",
        "scipy.stats",
        "sklearn.linear_model",
        "torch._dynamo",
        "torch._inductor.config",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "torch.nn.attention.flex_attention",
        "torch.utils.tensorboard",
    ]
)


def _interpret(
    arguments: list[str], directory: str, environment: dict[str, str], paths: list[str], written: str
) -> None:
    """What `python` does with these arguments, in this process."""
    multiprocessing.set_start_method(None, force=True)  # python's own; it would start a server like ours for workers
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    named = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [directory, *named, *paths]
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(os.path.join(written, name), os.O_WRONLY | os.O_CREAT), descriptor)
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    if arguments[:2] == ["-W", "ignore"]:
        warnings.simplefilter("ignore")
        arguments = arguments[2:]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(arguments[1], {"__name__": "__main__"})  # noqa: S102 (written in the test)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


class Python:
    """A process as `python` with these arguments starts it.

    Args:
        arguments: `-c CODE`, `-m MODULE` or a file, and what it is given; `-W ignore` may come before them.
        cwd: its directory; else the one of this process.
        environment: variables beside those of this process.
    """

    def __init__(self, *arguments: object, cwd: os.PathLike | None = None, **environment: str):
        self.arguments = [str(argument) for argument in arguments]
        self.written = tempfile.TemporaryDirectory()
        directory, variables = str(cwd or os.getcwd()), {**os.environ, **environment}
        self.process = CONTEXT.Process(
            target=_interpret, args=(self.arguments, directory, variables, PATHS, self.written.name)
        )
        self.process.start()

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end, `LONGEST` at most; its exit code (negative: a signal) and what it wrote."""
        self.process.join()
        with self.written as directory:
            out, err = (Path(directory, name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(self.arguments, self.process.exitcode, out, err)


def run_python(*arguments: object, cwd: os.PathLike | None = None, **environment: str):
    """`Python`, to its end."""
    return Python(*arguments, cwd=cwd, **environment).finish()


# Runs commands of csezoo in one process, which imports the libraries once. Of each it prints the status (or the type
# of a defect), what it wrote, and which libraries are imported by then.
EACH_COMMAND = """
import contextlib, io, json, sys
from csezoo.training.cli import main
answers = []
for words in json.loads(sys.argv[1]):
    out, error, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code
        except BaseException as defect:
            code = repr(defect)
    imported = sorted({name.split(".")[0] for name in sys.modules})
    answers.append([code, out.getvalue(), error.getvalue(), imported])
print(json.dumps(answers))
"""


def free_port() -> int:
    """A port for a server that starts later, seconds from now.

    The kernel hands out ports from 32768 up, to whoever asks next: other tests' processes would take one of those.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32768)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def run_two(*arguments: object, **environment: str) -> tuple[str, str]:
    """`Python` twice, as two processes that find each other like those of `accelerate launch`; what both wrote."""
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "ACCELERATE_USE_CPU": "true",
        **environment,
    }
    started = [Python(*arguments, RANK=rank, LOCAL_RANK=rank, **shared) for rank in ("0", "1")]
    finished = [process.finish() for process in started]
    assert [done.returncode for done in finished] == [0, 0], [done.stderr for done in finished]
    return "".join(done.stdout for done in finished), "".join(done.stderr for done in finished)


def as_a_user() -> list[str]:
    """The start of a command that may read no more than a user may, also where the tests run as root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("CLOSED FILES NOT TESTED: root reads and writes everything, and there is no setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
