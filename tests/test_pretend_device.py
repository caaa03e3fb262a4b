"""Every method on a pretend accelerator: no operator mixes devices, and an update waits for the device only where
`ALLOWED` says so.

The pretend device holds for a whole process, so `on_pretend_device.py` trains in one of its own.
"""

import json

import pytest

from tests.interpreters import run_python
from tests.methods import CONFIGS

# Waits of an update between two logs, with their reasons.
ALLOWED = {
    "read in transformers/masking_utils.py: _ignore_bidirectional_mask_sdpa": "it asks whether a mask masks anything",
    "read in modeling/editing.py: insert_masks": "how long the longest row is after the insertions",
}


def on_pretend_device(directory, *arguments):
    file = directory / "report.json"
    run_python("-m", "tests.on_pretend_device", arguments[0], file, *arguments[1:])
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """What the second update of each setting did."""
    return on_pretend_device(tmp_path_factory.mktemp("updates"), "updates")


@pytest.mark.parametrize("name", CONFIGS)
def test_an_update_of_every_method_mixes_no_devices_and_waits_only_where_it_may(name, updates):
    made = {setting: report for setting, report in updates.items() if setting.split(",")[0] == name}
    assert made
    for setting, report in made.items():
        assert report["error"] is None, f"{setting}: {report['error']}"
        assert not report["waits"].keys() - ALLOWED.keys(), f"{setting}: a wait for the device without a reason"


def test_the_pretend_device_notices_mixed_devices_and_waits(tmp_path):
    faults = on_pretend_device(tmp_path, "faults")
    assert "Mixed: aten.add.Tensor" in faults["mixed"]["error"]
    assert faults["wait"] == {"error": None, "waits": {"read in elsewhere": 1}}


def test_every_allowed_wait_happens(updates):
    waits = {wait for report in updates.values() for wait in report["waits"]}
    assert not ALLOWED.keys() - waits, "no longer needed"
