"""Data that is not as it was released is noticed, however many rows it has."""

import pytest

from csezoo.training.cli.parser import main
from csezoo.training.evaluation.suites import SUITES, full_receipt
from csezoo.training.evaluation.tasks.releases import RELEASED
from csezoo.training.evaluation.tasks.sts import HUB, STS_TASKS, load_task
from tests.training.evaluation.tasks.test_sts import senteval  # noqa: F401 (a fixture)


def test_the_data_measured_on_is_as_released(real_data):
    data = str(real_data / "data" / "senteval")
    tasks = [task for suite in ("sts", "sts-dev", "transfer") for task in SUITES[suite](data)]
    assert {task.name for task in tasks} == RELEASED.keys()
    assert {task.name: full_receipt(task, None)["as_released"] for task in tasks} == dict.fromkeys(RELEASED, True)


@pytest.mark.parametrize("change", [lambda pair: pair[::-1], lambda pair: (pair[0] + ".", pair[1])])
def test_one_changed_sentence_is_noticed(real_data, change):
    task = load_task("STS13", str(real_data / "data" / "senteval"))
    task.pairs[7] = change(task.pairs[7])
    assert full_receipt(task, None)["as_released"] is False


def test_made_up_data_is_scored_with_a_warning(bases, senteval, capsys):  # noqa: F811
    main(["evaluate", str(bases["roberta"]), "--pooling", "mean", "--suite", "sts", "--data", str(senteval)])
    said = capsys.readouterr().err
    assert [f"warning: {name}: its data is not as released" in said for name in STS_TASKS] == [True] * len(STS_TASKS)


def test_a_pinned_data_set_of_the_hub_has_its_revision_instead():
    assert {repository.split("/")[0] for repository, *_ in HUB.values()} == {"mteb"}
