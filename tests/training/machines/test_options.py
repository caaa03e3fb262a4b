"""What the options of `accelerate launch` and `sbatch` mean for Ray and submitit."""

from pathlib import Path

import pytest
from accelerate.commands.config import config_args

from csezoo.training.errors import UserError
from csezoo.training.machines.on_ray import processes_of
from csezoo.training.machines.on_slurm import _parameters, minutes_of

LAUNCH = Path(__file__).parents[3] / "examples" / "launch"


@pytest.mark.parametrize(
    "launcher, expected",
    [
        ([], (1, False)),
        (["--num_processes=4"], (4, False)),
        (["--cpu"], (1, True)),
        (["--config_file", str(LAUNCH / "fsdp.yaml")], (2, False)),
        (["--config_file", str(LAUNCH / "fsdp.yaml"), "--num_processes", "8"], (8, False)),
    ],
)
def test_a_task_on_ray_gets_what_the_launch_file_asks_for(launcher, expected):
    assert processes_of(launcher) == expected


def test_a_task_on_ray_gets_what_the_default_launch_file_asks_for(tmp_path, monkeypatch):
    default = tmp_path / "default_config.yaml"
    default.write_text((LAUNCH / "fsdp.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(config_args, "default_config_file", str(default))
    assert processes_of([]) == (2, False)


@pytest.mark.parametrize(
    "time, minutes",
    [("90", 90), ("90:30", 91), ("4:00:00", 240), ("1-0", 1440), ("1-12:30", 2190), ("1-00:00:01", 1441)],
)
def test_times_are_read_as_slurm_reads_them(time, minutes):
    assert minutes_of(time) == minutes


def test_a_time_that_is_over_before_a_task_can_be_queued_again_is_refused():
    with pytest.raises(UserError, match="time 3:30 is too short to be queued again; give 5 minutes or more"):
        _parameters(["--time=3:30"])
    assert _parameters(["--time=5"])["time"] == 5


def test_options_of_sbatch_reach_the_job_array():
    assert _parameters(["--qos=low", "--time=2:00:00", "--exclusive", "--array=%4"]) == {
        "time": 120,
        "array_parallelism": 4,
        "additional_parameters": {"requeue": True, "qos": "low", "exclusive": True},
    }
    assert _parameters([])["time"] == 240


@pytest.mark.parametrize(
    "option, message",
    [
        ("-p", "'-p' must be --KEY=VALUE"),
        ("--time=soon", "time 'soon' must be"),
        ("--array=0-3", "csezoo numbers the tasks itself, got --array=0-3; give --array=%N"),
        ("--signal=B:USR1@60", "csezoo sets --signal itself; leave it out"),
        ("--no-requeue", "csezoo sets --no-requeue itself; leave it out"),
    ],
)
def test_a_mistake_in_the_options_of_sbatch_is_named(option, message):
    with pytest.raises(UserError, match=message):
        _parameters([option])
