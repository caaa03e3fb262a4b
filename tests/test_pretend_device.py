"""Every method on a pretend accelerator: no operator mixes devices, and an update waits for the device only where
`ALLOWED` says so.

The pretend device holds for a whole process, so `on_pretend_device.py` trains in one of its own.
"""

import json

import pytest

from tests.interpreters import run_python
from tests.methods import CONFIGS, SIMCSE_FIRST

# Waits of an update between two logs, with their reasons.
ALLOWED = {
    "read in modeling/methods/diffcse/editing.py: insert_masks": "how long the longest row is after the insertions",
}
# What else a run reads from the device or copies to it, and when.
ALLOWED_IN_A_RUN = {
    "transformers/modeling_utils.py: to": "before training: the weights",
    "training/loop/run_receipt.py: model_sha256": "before training: a checksum of the base model",
    "training/loading/backbones.py: padding_moves": "before training: whether padding moves a vector",
    "transformers/masking_utils.py: _ignore_bidirectional_mask_sdpa": "the check of padding: whether a mask hides any",
    "training/loop/health.py: views_differ": "in the first update",
    "training/loop/health.py: refuse_equal_views": "in the first update",
    "training/loop/training_log.py: log": "once for each log: the losses since the last one",
    "training/loop/training_log.py: <dictcomp>": "diagnostics: their batch",
    "modeling/methods/diffaug/model.py: diagnostics": "diagnostics",
    "modeling/methods/diffaug/model.py: tokens": "diagnostics",
    "modeling/methods/diffaug/model.py: dropout_divergence": "diagnostics",
    "modeling/serving/pooling_csezoo.py: check_right_padding": "diagnostics, and the check of padding",
    "modeling/serving/encoding_csezoo.py: encode_token_ids": "a dev evaluation: whether its vectors are finite",
    "training/loop/best_model.py: _encode": "a dev evaluation: its vectors",
    "training/loop/health.py: <dictcomp>": "a dev evaluation: dead channels of a batch norm",
    "training/loop/background.py: host_copies": "a checkpoint",
    "training/loop/checkpoints.py: load": "on resuming",
    "torch/optim/optimizer.py: _process_value_according_to_param_policy": "on resuming: the optimizer's state",
    "training/loop/best_model.py: write": "at the end: the best weights",
    "modeling/contrastive/published.py: publish_model": "at the end: the repository",
    "modeling/contrastive/published.py: <dictcomp>": "at the end: the repository",
    "modeling/contrastive/published.py: matrix": "at the end: the repository",
    "modeling/serving/encoding_csezoo.py: encode": "sentences whose neighbours are shown: their vectors",
}


def on_pretend_device(directory, *kinds):
    file = directory / "report.json"
    run_python("-m", "tests.on_pretend_device", file, *kinds)
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What one process did."""
    return on_pretend_device(tmp_path_factory.mktemp("reports"), "updates", "faults", "moved", "runs:simcse")


@pytest.mark.parametrize("name", CONFIGS)
def test_an_update_of_every_method_mixes_no_devices_and_waits_only_where_it_may(name, reports):
    made = {setting: report for setting, report in reports["updates"].items() if setting.split(",")[0] == name}
    assert made
    for setting, report in made.items():
        assert report["error"] is None, f"{setting}: {report['error']}"
        assert not report["waits"].keys() - ALLOWED.keys(), f"{setting}: a wait for the device without a reason"


def test_the_pretend_device_notices_mixed_devices_and_waits(reports):
    assert "Mixed: aten.add.Tensor" in reports["faults"]["mixed"]["error"]
    assert reports["faults"]["wait"] == {"error": None, "waits": {"read in elsewhere": 1}}


def test_a_run_moves_to_another_kind_of_device_only_by_force(reports):
    (report,) = reports["moved"].values()
    assert report["error"] is None, report["error"]


def test_every_allowed_wait_happens(reports):
    waits = {wait for report in reports["updates"].values() for wait in report["waits"]}
    assert not ALLOWED.keys() - waits, "no longer needed"


@pytest.mark.parametrize("name", SIMCSE_FIRST)
def test_a_run_of_every_method_trains_and_resumes_on_the_device(name, reports, tmp_path):
    """Its end is that of the uninterrupted run, bit for bit, because the values of the pretend device are a CPU's."""
    made = reports if name == "simcse" else on_pretend_device(tmp_path, f"runs:{name}")
    report = made["runs"][name]
    assert report["error"] is None, report["error"]
    others = report["waits"].keys() - ALLOWED.keys()
    left = {wait.partition(" in ")[2] for wait in others} - ALLOWED_IN_A_RUN.keys()
    assert not left, sorted(left)
