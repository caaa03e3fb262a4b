"""Altered data is detected, even with the released number of rows."""

import pytest

from csezoo.training.evaluation.suites import LOADERS, full_receipt
from csezoo.training.evaluation.tasks.releases import RELEASED
from csezoo.training.evaluation.tasks.sts import HUB, load_task


def test_the_real_data_is_as_released(real_data):
    data = str(real_data / "data" / "senteval")
    tasks = [task for suite in ("sts", "sts-dev", "transfer") for task in LOADERS[suite](data)]
    assert {task.name for task in tasks} == RELEASED.keys()
    assert {task.name: full_receipt(task, None)["as_released"] for task in tasks} == dict.fromkeys(RELEASED, True)


@pytest.mark.parametrize("change", [lambda pair: pair[::-1], lambda pair: (pair[0] + ".", pair[1])])
def test_one_changed_sentence_is_detected(real_data, change):
    task = load_task("STS13", str(real_data / "data" / "senteval"))
    task.pairs[7] = change(task.pairs[7])
    assert full_receipt(task, None)["as_released"] is False


def test_data_sets_from_the_hub_are_those_of_mteb():
    assert {repository.split("/")[0] for repository, *_ in HUB.values()} == {"mteb"}
