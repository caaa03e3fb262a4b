"""The paired bootstrap, and tables of results."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from csezoo.training.cards.tables import distance, format_rows, read_rows
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.significance import Similarities, compare, paired_bootstrap, spearman
from csezoo.training.evaluation.tasks.retrieval import RetrievalTask
from csezoo.training.evaluation.tasks.sts import PairTask
from tests.conftest import SENTENCES


@pytest.fixture
def scores():
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 6, 400).astype(float)
    return gold + generator.normal(0, 1, 400), gold + generator.normal(0, 1.6, 400), gold


def test_spearman_equals_scipys_with_ties(scores):
    first, second, gold = scores
    ours = spearman(np.stack([first, np.round(second)]), np.stack([gold, gold]))
    assert ours == pytest.approx([100 * spearmanr(a, gold).statistic for a in (first, np.round(second))])


def test_the_bootstrap_resamples_the_same_pairs_for_both_encoders(scores):
    first, second, gold = scores
    bootstrap = paired_bootstrap([Similarities(gold, first, second)], resamples=300, seed=3)
    generator, differences = np.random.default_rng(3), []
    for _ in range(3):
        for draw in generator.integers(400, size=(100, 400)):
            pair = [spearmanr(values[draw], gold[draw]).statistic for values in (first, second)]
            differences.append(100 * (pair[0] - pair[1]))
    exact = 100 * (spearmanr(first, gold).statistic - spearmanr(second, gold).statistic)
    assert bootstrap["difference"] == pytest.approx(exact)
    assert (bootstrap["low"], bootstrap["high"]) == pytest.approx(tuple(np.percentile(differences, (2.5, 97.5))))
    assert bootstrap["low"] < exact < bootstrap["high"]


def test_a_clear_difference_is_significant_and_no_difference_is_not(scores):
    first, second, gold = scores
    assert paired_bootstrap([Similarities(gold, first, second)])["p"] <= 0.01
    assert paired_bootstrap([Similarities(gold, second, first)])["p"] <= 0.01
    assert paired_bootstrap([Similarities(gold, first, first + 1e-9)])["p"] == 1.0


def test_p_is_twice_the_share_of_draws_beyond_zero_and_no_less_than_one_draw(scores):
    first, second, gold = scores
    near = gold + np.random.default_rng(4).normal(0, 1.05, 400)
    made = paired_bootstrap([Similarities(gold, first, near)], resamples=100)
    draws = np.random.default_rng(0).integers(400, size=(100, 400))
    beyond = np.mean([spearmanr(first[d], gold[d]).statistic <= spearmanr(near[d], gold[d]).statistic for d in draws])
    assert 0 < beyond < 0.5, "a difference that some draws turn round"
    assert made["p"] == pytest.approx(2 * beyond)
    assert paired_bootstrap([Similarities(gold, first, second)], resamples=100)["p"] == pytest.approx(1 / 100)


def test_averages_over_tasks_and_seeds_are_compared_on_the_same_draws(scores):
    first, second, gold = scores
    seeds, few = np.stack([first, np.roll(first, 1)]), slice(0, 60)
    tasks = [Similarities(gold, seeds, np.stack([second, second])), Similarities(gold[few], first[few], second[few])]
    made = paired_bootstrap(tasks, resamples=30, seed=5)

    def score(values, gold):
        return 100 * spearmanr(values, gold).statistic

    def difference(large, small):
        one = np.mean([score(values[large], gold[large]) for values in seeds]) - score(second[large], gold[large])
        return (one + score(first[few][small], gold[few][small]) - score(second[few][small], gold[few][small])) / 2

    generator = np.random.default_rng(5)
    draws = [generator.integers(n, size=(30, n)) for n in (400, 60)]
    drawn = [difference(*pair) for pair in zip(*draws, strict=True)]
    assert made["difference"] == pytest.approx(difference(slice(None), slice(None)))
    assert (made["low"], made["high"]) == pytest.approx(tuple(np.percentile(drawn, (2.5, 97.5))))


def letters(texts):
    return np.array([[text.count(letter) for letter in "aeiou"] for text in texts], float)


def test_encoders_are_compared_on_every_task():
    pairs = list(zip(SENTENCES[:50], SENTENCES[30:80], strict=True))
    task = PairTask("toy", pairs, [float(len(a) - len(b)) for a, b in pairs], "here")
    (result,) = compare(letters, lambda texts: letters(texts) ** 2, [task], resamples=20)
    assert result["task"] == "toy"
    assert result["difference"] == pytest.approx(result["first"] - result["second"])
    with pytest.raises(UserError, match="compared on pairs with gold scores"):
        compare(letters, letters, [RetrievalTask(task)])
    with pytest.raises(UserError, match="toy: all similarities are equal"):
        compare(letters, lambda texts: np.ones((len(texts), 2)), [task])


def test_a_resample_without_a_correlation_is_left_out():
    gold = np.array([0.0, 1.0, 2.0])  # three equal draws have no correlation
    made = paired_bootstrap([Similarities(gold, gold, -gold)], resamples=200)
    assert (made["low"], made["high"], made["p"]) == (200.0, 200.0, pytest.approx(1 / 200, rel=0.5))


@pytest.fixture
def files(tmp_path):
    run = {"model": "runs/a_b", "summary": [{"task": "STS12", "mean": 70.126, "sd": 0.1, "n": 3}], "results": []}
    run["summary"].append({"task": "average of the tests", "mean": 71.0, "sd": 0.25, "n": 3})
    scored = [
        {"task": task, "metric": "spearman", "value": value} for task, value in (("STS12", 60.0), ("STS13", 70.0))
    ]
    scored.append({"task": "STSBenchmark geometry", "metric": "uniformity", "value": -2.5})
    evaluated = {"model": "dir/c", "results": scored}
    for name, content in (("run.json", run), ("evaluated.json", evaluated)):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    return [str(tmp_path / "run.json"), str(tmp_path / "evaluated.json")]


def test_tables_in_three_formats(files):
    rows = [row for file in files for row in read_rows(file)]
    header = ["model", "STS12", "STS13", "STSBenchmark geometry uniformity", "average of the tests"]
    first = ["a_b", "70.13 ± 0.10", "", "", "71.00 ± 0.25"]
    second = ["c", "60.00", "70.00", "-2.50", "65.00"]
    expected = ["| " + " | ".join(row) + " |" for row in (header, first, second)]
    assert format_rows(rows).splitlines() == [expected[0], "|---|---|---|---|---|", *expected[1:]]
    assert format_rows(rows, "csv").splitlines() == [",".join(row) for row in (header, first, second)]
    latex = format_rows(rows, "latex")
    assert r"a\_b & 70.13 $\pm$ 0.10 &  &  & 71.00 $\pm$ 0.25 \\" in latex and latex.startswith(
        r"\begin{tabular}{lrrrr}"
    )


def test_the_command_prints_a_table_and_refuses_other_files(files, tmp_path, capsys):
    main(["table", *files, "--format", "csv"])
    assert capsys.readouterr().out.startswith("model,STS12")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UserError, match="other.json: expected a JSON object, got list"):
        read_rows(str(tmp_path / "other.json"))


def test_a_column_of_different_data_is_named(files, tmp_path, capsys):
    """Two models that were scored on test files of the same name, or on raw and on tokenised pairs."""
    for name, sha256 in (("a", "x"), ("b", "x"), ("c", "y")):
        scored = {"task": "test", "metric": "spearman", "value": 70.0, "sha256": sha256}
        content = {"model": name, "results": [scored, {**scored, "task": "STS12", "sha256": "z"}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    a, b, c = (str(tmp_path / f"{name}.json") for name in "abc")
    main(["table", a, b])
    assert not capsys.readouterr().err
    main(["table", a, b, c])
    assert capsys.readouterr().err == "warning: not measured on the same data in all files: test\n"


def test_distance_to_a_published_number_is_in_standard_deviations():
    assert distance(77.0, 0.25, 76.25) == pytest.approx(3.0)
    assert distance(77.0, 0.0, 76.25) == np.inf


def test_the_command_prints_a_line_for_each_task(real_data, bases, capsys):
    options = ["--pooling", "cls", "mean", "--data", str(real_data / "data" / "senteval"), "--resamples", "20"]
    main(["compare", str(bases["bert"]), str(bases["bert"]), "--suite", "sts-dev", *options])
    assert capsys.readouterr().out.startswith("STSBenchmark-dev")
