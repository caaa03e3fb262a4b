"""Geometry and retrieval match plain loops; their reports show the numbers."""

import numpy as np
import pytest

from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.report import format_report
from csezoo.training.evaluation.suites import evaluate, evaluate_tasks
from csezoo.training.evaluation.tasks.geometry import GeometryTask
from csezoo.training.evaluation.tasks.neighbours import nearest_sentences, query_sentences, side_by_side
from csezoo.training.evaluation.tasks.retrieval import NeighboursTask, RetrievalTask
from csezoo.training.evaluation.tasks.sts import PairTask
from csezoo.training.files import read_json

GENERATOR = np.random.default_rng(0)
VECTORS = {f"s{n}": GENERATOR.normal(size=6).astype(np.float32) for n in range(60)}
PAIRS = PairTask(
    "toy",
    [(f"s{n}", f"s{(n * 7 + 3) % 60}") for n in range(0, 60, 2)],
    [float(n % 6) for n in range(30)],
    "here",
)


# The second sentence of a pair is closer to the first than most others are, and not always the closest.
VECTORS |= {second: VECTORS[first] + VECTORS[second] for first, second in PAIRS.pairs}


def encode(texts):
    return np.stack([VECTORS[text] for text in texts])


def cosine(a, b):
    a, b = VECTORS[a].astype(float), VECTORS[b].astype(float)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_recall_counts_both_directions_of_the_pairs_that_mean_the_same():
    corpus = [sentence for pair in PAIRS.pairs for sentence in pair]
    ranks = []
    for i, score in enumerate(PAIRS.scores):
        for query, wanted in ((2 * i, 2 * i + 1), (2 * i + 1, 2 * i)) if score == 5 else ():
            pair = cosine(corpus[query], corpus[wanted])
            closer = sum(cosine(corpus[query], other) > pair + 1e-12 for j, other in enumerate(corpus) if j != query)
            ranks.append(closer + 1)
    assert len(ranks) == 10 and 1 in ranks[::2] and 1 in ranks[1::2] and max(ranks) > 1
    results = evaluate_tasks(encode, [RetrievalTask(PAIRS)])
    for result, k in zip(results, (1, 5, 10), strict=True):
        assert result["metric"] == f"recall@{k}"
        assert result["value"] == pytest.approx(100 * np.mean([rank <= k for rank in ranks]))
        assert (result["queries"], result["corpus"], result["rows"]) == (10, 60, 30)


def test_copies_of_the_wanted_sentence_do_not_lower_its_rank():
    pairs = [("one", "two"), ("two", "six"), ("six", "ten"), ("ten", "red"), ("red", "sea"), ("sea", "sky")]
    task = PairTask("copies", pairs, [5.0, 1.0, 1.0, 1.0, 1.0, 1.0], "here")
    vectors = {"one": [1, 0.1], "two": [1, 0], "six": [0, 1], "ten": [0, 2], "red": [-1, 1], "sea": [-1, 0]}
    vectors["sky"] = [0, -1]
    results = evaluate_tasks(lambda texts: np.array([vectors[text] for text in texts], float), [RetrievalTask(task)])
    assert results[0]["value"] == 50.0, "that of the query is nearer, in the other direction"


def test_a_query_shows_its_three_nearest_neighbours_without_itself():
    (result,) = evaluate_tasks(encode, [NeighboursTask(PAIRS, "s4")])
    others = {sentence for pair in PAIRS.pairs for sentence in pair} - {"s4"}
    expected = sorted(others, key=lambda other: -cosine("s4", other))[:3]
    assert [near["sentence"] for near in result["value"]] == expected
    assert result["value"][0]["cosine"] == pytest.approx(cosine("s4", expected[0]))
    shown = format_report("m", [{"suite": "retrieval", **result}])
    assert shown.splitlines()[0].strip() == "s4" and expected[0] in shown


def test_tasks_that_are_parts_of_another_have_no_average():
    def shown(suite):
        return format_report("m", [{"suite": suite, "task": task, "value": 1.0, "metric": "a"} for task in "ab"])

    assert "Avg." in shown("sts") and "Avg." not in shown("sts-length")


def test_sentences_that_are_shown_are_short_and_from_the_complete_list():
    pairs = [(f"s{n:02}", "s") for n in range(11)] + [("t" * 60, "s"), ("s", "u" * 61), ("v", "unequal")]
    assert query_sentences(PairTask("toy", pairs, [5.0] * 13 + [4.0], "here")) == ["s00", "s03", "s06", "s09"]
    assert query_sentences(PairTask("toy", pairs[-3:], [5.0, 5.0, 4.0], "here")) == ["t" * 60]


def test_the_nearest_sentence_is_another_one_although_it_is_not_similar():
    vectors = {"a": [1.0, 0.0], "b": [-1.0, 1.0], "c": [-1.0, 2.0]}
    task = PairTask("toy", [("a", "c"), ("b", "c")], [5.0, 0.0], "here")
    before, after = (lambda texts, sign=sign: np.array([vectors[t] for t in texts]) * [1, sign] for sign in (1, 0))
    (row,) = side_by_side(nearest_sentences(task, before), nearest_sentences(task, after))
    assert row["query"] == "a"
    assert row["before"] == {"sentence": "c", "cosine": pytest.approx(-1 / 5**0.5)}
    assert row["after"]["cosine"] == -1


def test_geometry_follows_the_formulas_with_repeated_sentences():
    unit = {name: vector.astype(float) / np.linalg.norm(vector.astype(float)) for name, vector in VECTORS.items()}
    places = [unit[a] for a, _ in PAIRS.pairs] + [unit[b] for _, b in PAIRS.pairs]
    pairs = [(places[i], places[j]) for i in range(len(places)) for j in range(i)]
    positive = [(unit[a], unit[b]) for (a, b), score in zip(PAIRS.pairs, PAIRS.scores, strict=True) if score > 4]
    expected = {
        "alignment": np.mean([((a - b) ** 2).sum() for a, b in positive]),
        "uniformity": np.log(np.mean([np.exp(-2 * ((a - b) ** 2).sum()) for a, b in pairs])),
        "anisotropy": np.mean([a @ b for a, b in pairs]),
    }
    results = evaluate_tasks(encode, [GeometryTask(PAIRS)])
    assert {result["metric"]: result["value"] for result in results} == pytest.approx(expected, abs=1e-6)


def test_queries_need_the_retrieval_suite():
    with pytest.raises(UserError, match="only the suite retrieval shows neighbours; add retrieval to --suite"):
        evaluate(encode, ["sts"], "nowhere", queries=["a"])


def test_all_suites_from_the_command_line_on_real_data(real_data, bases, tmp_path, capsys):
    options = ["--pooling", "cls", "--data", str(real_data / "data" / "senteval"), "--out", str(tmp_path / "r.json")]
    options += ["--suite", "sts-dev", "geometry", "retrieval", "sts-length", "--queries", "you can do it, too ."]
    main(["evaluate", str(bases["bert"]), *options])
    results = read_json(tmp_path / "r.json")["results"]
    recall = [result for result in results if result["metric"] == "recall@10"]
    assert (recall[0]["queries"], recall[0]["corpus"]) == (194, 2758), "as in DiffCSE's table 10"
    rows = {result["task"]: result["rows"] for result in results if result["suite"] == "sts-length"}
    assert rows["SICK-R"] == 4927 == rows["SICK-R, to 8 words"] + rows["SICK-R, over 8 words"]
    shown = capsys.readouterr().out
    assert "uniformity" in shown and "you can do it, too ." in shown


@pytest.mark.parametrize(("count", "score"), [(5, 5.0), (9, 4.0)])
def test_retrieval_in_too_few_rows_is_refused(count, score):
    pairs = PairTask("toy", [(f"a {row}", f"b {row}") for row in range(count)], [score] * count, "example")
    with pytest.raises(UserError, match="toy retrieval needs at least 6 pairs, for recall@10, and one with"):
        RetrievalTask(pairs)


def test_an_encoder_with_one_vector_for_everything_finds_nothing():
    with pytest.raises(UserError, match="one vector for every sentence"):
        evaluate_tasks(lambda texts: np.ones((len(texts), 3), np.float32), [RetrievalTask(PAIRS)])
