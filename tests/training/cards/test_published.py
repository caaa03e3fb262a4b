"""The numbers of the papers are typed correctly, and compared with a run only if both measure the same."""

import statistics

import pytest

from csezoo.training.cards.card_tables import results_table
from csezoo.training.cards.method_texts import method_entries
from csezoo.training.cards.published import SUITES, TRANSFER_AVERAGE, published
from csezoo.training.cards.results_files import format_rows, read_rows
from csezoo.training.errors import UserError
from csezoo.training.evaluation.report import AVERAGE
from csezoo.training.evaluation.tasks.names import RELEASED_PAIRS, STS_TASKS, TRANSFER_TASKS
from csezoo.training.files import write_json
from csezoo.training.recipes import changes, load_recipe, recipe_names

ENTRIES = [
    (recipe, row)
    for entry in method_entries().values()
    for recipe, rows in entry.get("published", {}).items()
    for row in rows
]


@pytest.mark.parametrize(
    "recipe, entry", ENTRIES, ids=[f"{recipe}-{entry['suite']}-{n}" for n, (recipe, entry) in enumerate(ENTRIES)]
)
def test_the_average_of_a_row_is_the_mean_of_its_values_or_a_note_says_otherwise(recipe, entry):
    assert recipe in recipe_names()
    assert entry.keys() <= {"source", "suite", "values", "average", "deviations", "deviation", "note"}
    for key in ("values", "deviations"):
        assert len(entry.get(key, [])) in (0, len(SUITES[entry["suite"]]) - 1)
    if "values" in entry:
        mean = statistics.mean(entry["values"])
        noted = f"the mean of the printed values is {mean:.2f}" in entry.get("note", "")
        # Values and average are rounded to two decimals: each is off by up to half a hundredth.
        assert noted != (abs(mean - entry["average"]) < 0.01)


def test_each_recipe_has_its_papers_headline_number():
    """As printed in the abstract, the text or a caption of each paper."""
    averages = {
        "simcse-bert-base-uncased": 76.25,
        "promptbert-bert-base-uncased": 78.54,
        "diffaug-bert-base-uncased-sup": 82.42,
        "l2pcsr-bert-base-uncased": 77.20,
        "diffcse-bert-base-uncased-sts": 78.49,
        "prdsimcse-bert-base-uncased": 77.33,
        "sgopt-bert-base-uncased": 74.62,
    }
    assert {recipe: published(recipe)[0].scores[AVERAGE] for recipe in averages} == averages
    assert published("sgopt-bert-base-uncased")[0].scores["STSBenchmark"] == 77.23, (
        "SG-OPT's tables order the tasks differently"
    )


@pytest.fixture
def results_file(tmp_path):
    """Writes a results file of two seeds with the keys that `read_rows` needs, and reads its rows."""

    def write(rows=RELEASED_PAIRS, **changes):
        results = [{"task": task, "rows": rows[task], "value": 70.0, "metric": "spearman"} for task in STS_TASKS]
        summary = [{"task": task, "mean": 70.0, "sd": 0.5, "n": 2} for task in (*STS_TASKS, AVERAGE)]
        report = {"model": "mine", "recipe": "simcse-bert-base-uncased", "method": "simcse", "changed": []}
        path = tmp_path / "results.json"
        write_json(path, {**report, "results": results, "summary": summary, **changes})
        return read_rows(str(path))

    return write


def test_the_rows_are_the_run_the_paper_and_the_distance(results_file):
    rows = results_file()
    assert [name for name, _ in rows] == ["mine", "mine, published", "mine, distance in sd"]
    _, (_, paper), (_, distances) = rows
    assert (paper["STS12"], paper[AVERAGE]) == ("68.40", "76.25")
    assert (distances["STS12"], distances[AVERAGE]) == ("+3.2", "-12.5")
    assert "| mine, distance in sd | +3.2 |" in format_rows(rows)


def test_a_published_deviation_is_shown(results_file):
    _, (_, paper), _ = results_file(recipe="sgopt-bert-base-uncased", method="sgopt")
    assert paper[AVERAGE] == "74.62 ± 0.25"


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"summary": []}, ["mine, published"]),
        ({"recipe": "sgopt-mbert", "method": "sgopt"}, []),
        ({"changed": ["base_model"]}, []),
        ({"changed": None}, []),
        ({"recipe": "recipe.yaml"}, []),
        ({"recipe": None}, []),
    ],
)
def test_only_an_unchanged_recipe_of_a_paper_is_compared_and_only_several_seeds_have_a_distance(
    results_file, changes, others
):
    assert [name for name, _ in results_file(**changes)] == ["mine", *others]


@pytest.mark.parametrize(
    ("name", "overrides", "changed"),
    [
        ("diffaug-bert-base-uncased-semi-aux", {"nli_fraction": 0.01}, ["nli_fraction"]),
        ("untrained-bert-base-uncased-first-last-mean", {"pooling": "cls"}, ["pooling"]),
        ("simcse-bert-base-uncased", {"base_model": "./minilm", "method": "l2pcsr"}, ["method", "base_model"]),
        ("simcse-bert-base-uncased", {"train_file": "mine.txt"}, ["train_file"]),
        ("simcse-bert-base-uncased", {"train_file": "data/wiki1m_for_simcse.txt.gz", "dataset": None}, []),
        ("simcse-bert-base-uncased", {"seeds": [1, 2], "name": "mine", "output_dir": "x", "eval_data": "data"}, []),
        ("simcse-bert-base-uncased", {"eval_data": "none"}, ["eval_data"]),
        ("contrastive-bt-bert-base-uncased", {"train_file": "pairs.csv"}, []),
    ],
)
def test_what_a_run_has_changed_of_its_recipe(name, overrides, changed):
    assert changes(load_recipe(name, overrides)) == changed


def transfer_file(path, **changes):
    rows = [{"task": task, "rows": 9, "value": 80.0, "metric": "accuracy", **changes} for task in TRANSFER_TASKS]
    report = {
        "model": "runs/mine/best",
        "recipe": "diffcse-bert-base-uncased-transfer",
        "changed": [],
        "results": rows,
    }
    write_json(path, report)
    return read_rows(str(path))


def test_transfer_tasks_of_a_run_meet_the_paper_s_under_the_name_of_the_run(tmp_path):
    (name, cells), (beside, paper) = transfer_file(tmp_path / "transfer.json", protocol="SentEval default")
    assert (name, beside) == ("mine", "mine, published")
    assert cells[TRANSFER_AVERAGE] == "80.00" and paper == {
        **dict(zip(TRANSFER_TASKS, ("82.69", "87.23", "95.23", "89.28", "86.60", "90.40", "76.58"), strict=True)),
        TRANSFER_AVERAGE: "86.86",
    }
    for other in ({"protocol": "SentEval fast"}, {"protocol": "SentEval mlp"}, {"suite": "pairs"}):
        assert len(transfer_file(tmp_path / "other.json", **other)) == 1, "which no paper uses"


def test_results_that_were_not_made_alike_have_no_average(tmp_path):
    rows = [{"task": task, "metric": "spearman", "value": 80.0, "dtype": "float32"} for task in STS_TASKS]
    for dtype, averages in (("float32", ["80.00"]), ("bfloat16", [])):
        rows[-1]["dtype"] = dtype
        write_json(tmp_path / "r.json", {"model": "mine", "results": rows})
        ((_, cells),) = read_rows(str(tmp_path / "r.json"))
        assert [cell for name, cell in cells.items() if name == AVERAGE] == averages


def test_a_note_that_limits_the_comparison_is_shown_beside_the_numbers(results_file):
    _, (name, _), *_ = results_file(recipe="promptbert-roberta-base")
    assert name == "mine, published (the release adds a full stop to test sentences that end without one)"


def test_tasks_with_other_pairs_than_the_paper_s_are_not_compared(results_file):
    """MTEB's SICK-R has twice as many pairs, so neither it nor the average is compared."""
    _, (_, paper), (_, distances) = results_file(rows={**RELEASED_PAIRS, "SICK-R": 9927})
    assert paper.keys() == distances.keys() == set(STS_TASKS) - {"SICK-R"}


def test_a_run_remembers_its_recipe(tmp_path):
    renamed = load_recipe("simcse-bert-base-uncased", {"name": "mine"})
    assert (renamed.name, renamed.recipe) == ("mine", "simcse-bert-base-uncased")
    (tmp_path / "mine.yaml").write_text("method: simcse\n", encoding="utf-8")
    assert load_recipe(str(tmp_path / "mine.yaml")).recipe == "mine.yaml"


@pytest.mark.parametrize(("dataset", "raw"), [("mteb/sts12-sts", True), ("SentEval STS/STS12-en-test", False)])
def test_a_card_warns_that_raw_text_is_not_the_paper_s_tokens(dataset, raw):
    recipe = load_recipe("simcse-bert-base-uncased")
    result = {"task": "STS12", "dataset": dataset, "rows": RELEASED_PAIRS["STS12"], "value": 70.0}
    table = results_table(recipe, [result], None)
    assert "| STS12 | " in table and "Source of the paper's numbers" in table
    assert ("as raw text" in table) is raw


def test_a_score_that_is_no_number_is_refused(results_file):
    with pytest.raises(UserError, match="is not a results file"):
        results_file(summary=[{"task": "STS12", "mean": "70", "sd": 0.5, "n": 2}])


def test_a_task_that_is_not_text_is_refused(results_file):
    with pytest.raises(UserError, match="is not a results file .the task None is not text"):
        results_file(summary=[{"task": None, "mean": 70.0, "sd": 0.5, "n": 2}])
