"""Tables on a real Slurm of this machine: slurmctld, slurmd and munged in a temporary directory."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from csezoo.training.files import read_json
from tests.interpreters import free_port

from .conftest import ENVIRONMENT, UPDATES, assert_same, only_run, wait_for_the_middle

pytest.importorskip("submitit", reason="SLURM NOT TESTED: pip install submitit")
PATH = f"{os.environ['PATH']}:/usr/sbin"
if missing := [name for name in ("slurmctld", "slurmd", "munged", "srun") if not shutil.which(name, path=PATH)]:
    pytest.skip(f"SLURM NOT TESTED: no {', '.join(missing)} here", allow_module_level=True)
if os.geteuid():
    pytest.skip("SLURM NOT TESTED: slurmd needs root", allow_module_level=True)
pytestmark = pytest.mark.slow

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=requeue_delay=1,sched_interval=1,bf_interval=1
NodeName={host} CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


@pytest.fixture(scope="module")
def slurm():
    """One node with all processors of this machine; jobs of the partition `high` preempt those of `low`."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a socket's name must be short
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    host, ports = socket.gethostname().partition(".")[0], (free_port(), free_port())
    content = CONFIGURATION.format(host=host, folder=folder, ports=ports, cpus=os.cpu_count())
    (folder / "slurm.conf").write_text(content, encoding="utf-8")
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    names = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log"}
    names |= {"pid-file": "munged.pid", "seed-file": "munged.seed"}
    munge = ["munged", "--foreground", "--force", *(f"--{key}={folder / name}" for key, name in names.items())]
    daemons = [subprocess.Popen(munge, env=environment)]
    while not (folder / "munge.socket").exists():
        assert daemons[0].poll() is None
        time.sleep(0.1)
    daemons += [subprocess.Popen([name, "-D"], env=environment) for name in ("slurmctld", "slurmd")]
    try:
        deadline = time.monotonic() + 120
        while "idle" not in shown(environment, "sinfo", "--noheader") and time.monotonic() < deadline:
            time.sleep(0.5)
        yield environment
    finally:
        shown(environment, "scancel", "--full", "--signal=KILL", "--user=root")
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()
        shutil.rmtree(folder)


def shown(environment, *command):
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def test_a_preempted_run_is_queued_again_and_ends_bit_identical(slurm, table, uninterrupted, tmp_path):
    words = table(tmp_path, "--on", "slurm", "--sbatch", f"--time=1:00:00 --cpus-per-task={os.cpu_count()}")
    words["env"] |= slurm
    with subprocess.Popen(**words) as command:
        run = wait_for_the_middle(tmp_path, command)
        subprocess.run(["srun", "--partition=high", "--exclusive", "true"], env=slurm, check=True)
        assert command.wait(timeout=800) == 0
    assert "resumed from" in (run / "train.log").read_text(encoding="utf-8")
    assert_same(only_run(tmp_path), uninterrupted)
    assert (tmp_path / "prdsimcse" / "table-13" / "table.md").is_file()


@pytest.mark.timeout(1500)
def test_a_run_over_its_time_is_queued_again_and_ends_bit_identical(slurm, table, tmp_path):
    """Slurm signals a task 90 seconds before its end. The limit is lowered in the middle of the run.

    Slurm looks at limits every 30 seconds. The run has to last longer than that, also on a fast machine.
    """
    longer, out = ("--set", f"max_steps={15 * UPDATES}"), tmp_path / "limited"
    words = table(out, *longer, "--on", "slurm", "--sbatch", f"--time=10 --cpus-per-task={os.cpu_count()}")
    words["env"] |= slurm
    with subprocess.Popen(**words) as command:
        wait_for_the_middle(out, command)
        job = shown(slurm, "squeue", "--noheader", "--partition=low", "--format=%A").strip()
        update = ["scontrol", "update", f"JobId={job}"]
        subprocess.run([*update, "TimeLimit=1"], env=slurm, check=True)
        while "PENDING" not in shown(slurm, "squeue", "--noheader", f"--job={job}", "--format=%T"):
            assert command.poll() is None
            time.sleep(0.5)
        subprocess.run([*update, "TimeLimit=10", "StartTime=now"], env=slurm, check=True)
        assert command.wait(timeout=800) == 0
    assert "resumed from" in (only_run(out) / "train.log").read_text(encoding="utf-8")
    (log,) = (out / "prdsimcse" / "table-13" / "slurm").glob("*_log.out")
    assert "timed out" in log.read_text(encoding="utf-8"), "for its time, and for no other reason"
    subprocess.run(**table(tmp_path / "unlimited", *longer), check=True)
    assert_same(only_run(out), only_run(tmp_path / "unlimited"))


def test_a_search_makes_its_trials_and_its_winner_as_jobs(slurm, long_profile, tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("learning_rate: [1.0e-5, 1.0e-3]\n", encoding="utf-8")
    command = [sys.executable, "-m", "csezoo.training.cli", "tune", "simcse-bert-base-uncased", "--space", space]
    command += ["--trials", 2, "--seeds", 7, "--profile", long_profile, "--set", "max_steps=4", "eval_steps=2"]
    command += ["--out", tmp_path / "out", "--on", "slurm", "--sbatch", "--time=10 --cpus-per-task=1"]
    done = subprocess.run(map(str, command), env={**ENVIRONMENT, **slurm}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 tasks in the queue" in done.stderr and "1 tasks in the queue" in done.stderr
    found = read_json(tmp_path / "out" / "search.json")
    assert found["trials"] == {"COMPLETE": 2} and found["results"]["seed"] == 7
    assert (tmp_path / "out" / found["winner"] / "best" / "model.safetensors").is_file()


def test_a_job_array_makes_a_table_and_names_what_failed(slurm, table, tmp_path):
    mistakes = ["--set", "train_file=nowhere.txt", "--on", "slurm", "--sbatch", "--time=10 --cpus-per-task=1"]
    words = table(tmp_path, *mistakes, seeds=(1, 2))
    words["env"] |= slurm
    done = subprocess.run(**words, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "2 tasks in the queue" in done.stderr
    assert "2 of 2 runs failed" in done.stderr and "nowhere.txt" in done.stderr.splitlines()[-1]


def test_slurm_refuses_an_option_in_one_line(slurm, table, tmp_path):
    words = table(tmp_path, "--on", "slurm", "--sbatch=--partition=nowhere")
    words["env"] |= slurm
    done = subprocess.run(**words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: --sbatch: Slurm refused the jobs")
