"""The paired bootstrap, and tables of results."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from csezoo.training.cards.results_files import distance, format_rows, read_rows
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from csezoo.training.evaluation.significance import Similarities, compare, paired_bootstrap, spearman, verdict
from csezoo.training.evaluation.tasks.retrieval import RetrievalTask
from csezoo.training.evaluation.tasks.search import SearchTask, load_search
from csezoo.training.evaluation.tasks.sts import PairTask
from csezoo.training.files import write_json
from csezoo.training.tuning.criteria import HOW_RELIABLE
from tests.conftest import SENTENCES, sentence_transformer

PAIRS = list(zip(SENTENCES[:50], SENTENCES[30:80], strict=True))
LENGTHS = [float(len(first) - len(second)) for first, second in PAIRS]


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
    bootstrap = paired_bootstrap([Similarities(gold, first, second)], resamples=300)
    generator, differences = np.random.default_rng(0), []
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
    made = paired_bootstrap(tasks, resamples=30)

    def score(values, gold):
        return 100 * spearmanr(values, gold).statistic

    def difference(large, small):
        one = np.mean([score(values[large], gold[large]) for values in seeds]) - score(second[large], gold[large])
        return (one + score(first[few][small], gold[few][small]) - score(second[few][small], gold[few][small])) / 2

    generator = np.random.default_rng(0)
    draws = [generator.integers(n, size=(30, n)) for n in (400, 60)]
    drawn = [difference(*pair) for pair in zip(*draws, strict=True)]
    assert made["difference"] == pytest.approx(difference(slice(None), slice(None)))
    assert (made["low"], made["high"]) == pytest.approx(tuple(np.percentile(drawn, (2.5, 97.5))))


def letters(texts):
    return np.array([[text.count(letter) for letter in "aeiou"] for text in texts], float)


def test_encoders_are_compared_on_every_task():
    task = PairTask("toy", PAIRS, LENGTHS, "here")
    (result,) = compare(letters, lambda texts: letters(texts) ** 2, [task], resamples=20)
    assert (result["task"], result["items"]) == ("toy", 50)
    assert result["difference"] == pytest.approx(result["new"] - result["old"])
    with pytest.raises(UserError, match="compared on pairs with gold scores"):
        compare(letters, letters, [RetrievalTask(task)])
    with pytest.raises(UserError, match="toy: all similarities are equal"):
        compare(letters, lambda texts: np.ones((len(texts), 2)), [task])


def test_several_tasks_have_an_average_of_their_own_draws():
    tasks = [PairTask("half", PAIRS[:25], LENGTHS[:25], "here"), PairTask("other", PAIRS[25:], LENGTHS[25:], "here")]
    part = PairTask("a part of the other", PAIRS[30:], LENGTHS[30:], "here")
    all_tasks = [*tasks, part, tasks[1]]  # a task is in two suites
    *rows, of_part, again, average = compare(letters, lambda texts: letters(texts) ** 2, all_tasks, resamples=20)
    assert (of_part["task"], of_part["items"]) == ("a part of the other", 20) and again == rows[1]
    assert (average["task"], average["items"]) == ("average", 50), "pairs count once"
    for name in ("old", "new", "difference"):
        assert average[name] == pytest.approx(np.mean([row[name] for row in rows]))
    assert average["low"] <= average["difference"] <= average["high"]


def test_a_search_is_compared_by_the_ranks_of_its_queries():
    """The new encoder finds both passages at once, the old one finds them after the others."""
    task = SearchTask("faq", {"a": {0}, "e": {1}}, ["aa", "ee", "io", "ou"])
    rows = compare(lambda texts: -letters(texts), letters, [task], resamples=20)
    assert [(row["items"], row["old"], row["new"]) for row in rows] == [(2, 100.0, 100.0)], "cosines do not change"
    swapped = {"aa": "ee", "ee": "aa"}
    worse = lambda texts: letters([swapped.get(text, text) for text in texts])  # noqa: E731
    (row,) = compare(worse, letters, [task], resamples=20)
    assert (row["old"], row["new"]) == (pytest.approx(100 * (1 / 4)), 100.0), "ties with a wrong passage count against"
    assert row["low"] == row["difference"] == row["high"] == pytest.approx(75.0), "both queries have the same change"


def test_a_query_among_the_passages_is_not_a_wrong_answer():
    """It is nearest to itself. If it was judged right, it is the answer."""
    task = SearchTask("faq", {"abc": {0}, "ee": {2}}, ["ab", "abc", "ee"])
    assert task.scores(letters).tolist() == [100.0, 100.0]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_search_has_the_prompts_and_the_similarity_of_the_model(bases, tmp_path, similarity):
    """`InformationRetrievalEvaluator` of sentence-transformers scores the same; the prompts matter."""
    model = sentence_transformer(bases["bert"], normalize=False).eval()
    model.prompts = {"query": "the old cat: ", "document": "a river, a house and "}
    model.similarity_fn_name = similarity
    model.save(str(tmp_path / "model"))
    queries = {text: {n} for n, text in enumerate(SENTENCES[:30])}
    passages = [" ".join(reversed(text.split())) for text in SENTENCES[:60]]
    encode, _ = load_encoder(str(tmp_path / "model"))
    scores = SearchTask("faq", queries, passages).scores(encode)
    evaluator = InformationRetrievalEvaluator(
        {text: text for text in queries},
        {str(n): passage for n, passage in enumerate(passages)},
        {text: set(map(str, right)) for text, right in queries.items()},
        write_csv=False,
    )
    found = evaluator(model)[f"{similarity}_mrr@10"]
    assert scores.mean() == pytest.approx(100 * found)
    plain = SearchTask("faq", queries, passages).scores(encode.encode)
    assert plain.mean() != pytest.approx(scores.mean())


def test_pairs_that_nearly_all_have_one_grade_are_too_few():
    """One of two equal models would often be called better: a resample without the others has no correlation."""
    grades = [float(n < 3) for n in range(len(PAIRS))]
    tasks = [PairTask("few", PAIRS, grades, "here"), PairTask("toy", PAIRS, LENGTHS, "here")]
    rows = compare(letters, lambda texts: letters(texts) ** 2, tasks, resamples=20)
    assert [row["others"] for row in rows] == [3, len(PAIRS) - max(map(LENGTHS.count, LENGTHS)), 3]
    assert verdict(rows[0]).startswith("Pairs with another grade than most: 3. They are too few to tell")
    assert "too few" in verdict(rows[-1]) and "too few" not in verdict(rows[1])


def test_pairs_of_equal_texts_are_not_said_to_show_that_the_encoder_knows_one_vector():
    task = PairTask("same", [(text, text) for text, _ in PAIRS], LENGTHS, "here")
    with pytest.raises(UserError, match="same: the two texts of each pair are equal; give pairs of different texts"):
        compare(letters, letters, [task])


def test_two_judgements_of_the_same_pairs_count_both():
    tasks = [PairTask(name, PAIRS, scores, "here") for name, scores in (("one", LENGTHS), ("two", LENGTHS[::-1]))]
    first, second, average = compare(letters, lambda texts: letters(texts) ** 2, tasks, resamples=20)
    assert average["difference"] == pytest.approx((first["difference"] + second["difference"]) / 2)


@pytest.mark.parametrize(
    ("low", "high", "better"), [(0.1, 0.9, "The new model is"), (-0.9, -0.1, "The old model is"), (-1, 1, "Neither")]
)
def test_the_sentence_names_the_better_model_by_the_interval(low, high, better):
    assert verdict({"items": 90, "others": 80, "difference": (low + high) / 2, "low": low, "high": high}).startswith(
        better
    )


def test_a_resample_without_a_correlation_is_left_out():
    gold = np.array([0.0, 1.0, 2.0])  # three equal draws have no correlation
    made = paired_bootstrap([Similarities(gold, gold, -gold)], resamples=200)
    assert (made["low"], made["high"], made["p"]) == (200.0, 200.0, pytest.approx(1 / 200, rel=0.5))
    with pytest.raises(UserError, match="resamples: every one has equal scores only"):
        paired_bootstrap([Similarities(np.ones(3), gold, -gold)], resamples=1)


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
        write_json(tmp_path / name, content)
    return [str(tmp_path / "run.json"), str(tmp_path / "evaluated.json")]


def test_tables_in_three_formats(files):
    rows = [row for file in files for row in read_rows(file)]
    header = ["model", "STS12", "STS13", "STSBenchmark geometry uniformity", "average of the tests"]
    first = ["a_b", "70.13 ± 0.10", "", "", "71.00 ± 0.25"]
    second = ["c", "60.00", "70.00", "-2.50", ""]  # two tests have no average of the seven
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
        write_json(tmp_path / f"{name}.json", content)
    a, b, c = (str(tmp_path / f"{name}.json") for name in "abc")
    main(["table", a, b])
    assert not capsys.readouterr().err
    main(["table", a, b, c])
    assert capsys.readouterr().err == "warning: not measured on the same data in all files: test\n"


def test_distance_to_a_published_number_is_in_standard_deviations():
    assert distance(77.0, 0.25, 76.25) == pytest.approx(3.0)
    assert distance(77.0, 0.0, 76.25) == np.inf


def run(capsys, base, *options):
    main(["compare", str(base), str(base), "--pooling", "cls", "mean", "--resamples", "100", *options])
    return capsys.readouterr().out.splitlines()


def test_the_command_prints_a_table_with_a_header_and_a_sentence(bases, tmp_path, capsys):
    (tmp_path / "mine.csv").write_text(
        "sentence1,sentence2,score\n" + "".join(f"{a},{b},{n % 6}\n" for n, (a, b) in enumerate(PAIRS)), "utf-8"
    )
    first, second, header, row, sentence = run(capsys, bases["bert"], "--pairs", str(tmp_path / "mine.csv"))
    assert (first.split()[0], second.split()[0]) == ("old", "new")
    assert header.split() == ["task", "old", "new", "new", "-", "old", "95", "%", "interval", "p"]
    assert row.startswith("mine") and sentence.endswith(f"({len(PAIRS)} judged).")


def test_the_command_compares_a_search(bases, tmp_path, capsys):
    rows = "".join(f"{a},{b}\n" for a, b in PAIRS[:10])
    (tmp_path / "faq.csv").write_text("query,passage\n" + rows, "utf-8")
    (tmp_path / "more.txt").write_text("\n".join(b for _, b in PAIRS[10:]), "utf-8")
    files = ["--queries", str(tmp_path / "faq.csv"), "--passages", str(tmp_path / "more.txt")]
    *_, row, sentence = run(capsys, bases["bert"], *files)
    assert row.startswith("faq") and sentence.startswith("10 judged are too few to tell")


def test_the_command_compares_without_labels_and_says_how_weak_that_is(bases, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES[:20]), "utf-8")
    printed = "\n".join(run(capsys, bases["bert"], "--sentences", str(tmp_path / "text.txt")))
    assert "contrastive loss on 20 held-out sentences" in printed and HOW_RELIABLE in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("query,answer\na,b\n", "has no column passage; it needs query and passage"),
        ("query,passage\na,\n", "line 2: a query or a passage is empty"),
        ("query,passage\na,b\n", "1 queries and 1 passages; a search needs two passages"),
    ],
)
def test_a_search_that_cannot_be_read_is_refused(content, message, tmp_path):
    (tmp_path / "faq.csv").write_text(content, "utf-8")
    with pytest.raises(UserError, match=message):
        load_search(str(tmp_path / "faq.csv"))
