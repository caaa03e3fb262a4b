"""Our numbers beside the paper's."""

import math

import pytest

from csezoo.training.reproducing.columns import COLUMN_SETS, Column
from csezoo.training.reproducing.pooling import Line, compare, mark_other_data


def test_z_has_the_deviations_of_both_sides():
    cell = compare([79.0, 80.0, 81.0], 78.0, 2.0, 8)
    assert (cell.mean, cell.sd, cell.n, cell.difference) == (80.0, 1.0, 3, 2.0)
    assert cell.z == pytest.approx(2.0 / math.sqrt(1 / 3 + 4 / 8))


def test_a_side_without_deviation_is_assumed_to_have_the_others():
    assert compare([79.0, 80.0, 81.0], 78.0, None, 1).z == pytest.approx(2.0 / math.sqrt(1 / 3 + 1))
    assert compare([80.0], 78.0, 2.0, 8).z == pytest.approx(2.0 / math.sqrt(4 + 4 / 8))
    assert compare([80.0], 78.0, None, 1).z is None
    assert compare([80.0, 80.0], 78.0, None, 1).z is None  # no spread at all


def test_without_runs_only_the_paper_is_shown():
    cell = compare([], 78.0, 2.0, 8)
    assert (cell.mean, cell.paper, cell.difference, cell.z) == (None, 78.0, None, None)


def test_rows_that_were_measured_on_other_data_are_marked():
    def line(name, **sha256):
        results = [{"suite": "sts", "task": task, "value": 70.0, "sha256": data} for task, data in sha256.items()]
        return Line(name, {}, "", runs=[{"run": name, "results": results}])

    lines = mark_other_data([line("a", STS12="x"), line("b", STS12="x", STS13="y"), line("c", STS12="z", STS13="y")])
    assert [each.reasons for each in lines] == [[], [], ["STS12 is measured on other data than before in a"]]


def test_an_average_is_over_the_tasks_of_its_suite():
    results = [
        {"suite": "transfer", "task": t, "metric": "accuracy", "value": v, "dev": v + 1}
        for t, v in (("MR", 80.0), ("CR", 90.0))
    ]
    results.append({"suite": "sts", "task": "STS12", "metric": "spearman", "value": 10.0})
    assert Column("Avg.", "transfer").value(results) == 85.0
    assert COLUMN_SETS["transfer-dev"][0].value(results) == 86.0
    assert Column("CR", "transfer", "CR").value(results) == 90.0
    assert Column("TREC", "transfer", "TREC").value(results) is None
