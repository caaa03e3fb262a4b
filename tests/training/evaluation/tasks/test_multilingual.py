"""BQ, LCQMC, STS 2017 and Spanish STS 2014: reading the data, the metric, damaged data."""

import hashlib
import json

import numpy as np
import pytest

from csezoo.training.errors import UserError
from csezoo.training.evaluation.significance import compare
from csezoo.training.evaluation.suites import evaluate
from csezoo.training.evaluation.tasks.multilingual import CHINESE, STS17, load_chinese, load_spanish, load_sts17
from csezoo.training.evaluation.tasks.sts import PairTask
from tests.hub_server import Commit, HubServer
from tests.interpreters import run_python
from tests.training.senteval_files import respaced, write

CHINESE_ROWS = {"BQ": 10000, "LCQMC": 12500}
LANGUAGES = ("ar-ar", "en-ar", "es-es", "es-en", "en-en", "en-tr", "en-de", "fr-en", "it-en", "nl-en")


def pair(place, n):
    """Two sentences whose similarity depends on the letters a and b."""
    return f"{place} {n}  {'a' * (n % 7)}", f"{place} {n} {'b' * (n % 5)}\u00a0a"


@pytest.fixture
def directory(tmp_path):
    """A directory with the files as distributed."""
    for name, rows in CHINESE_ROWS.items():
        write(tmp_path / name / f"{name}.test.data", ["\t".join([*pair("好", n), str(n % 2)]) for n in range(rows)])
    for languages in LANGUAGES:
        rows = ["\t".join([*pair(languages, n), str(n % 6 / 2)]) for n in range(250)]
        write(tmp_path / "STS" / "STS2017-extended" / f"STS.{languages}.txt", rows)
    for part, rows in (("news", 480), ("wikipedia", 324)):
        folder = tmp_path / "STS" / "STS14-es-test"
        write(folder / f"STS.input.{part}.txt", ["\t".join(pair(part, n)) for n in range(rows)])
        write(folder / f"STS.gs.{part}.txt", [str(n % 5) for n in range(rows)])
    return tmp_path


def letters(texts):
    return np.array([[text.count(letter) for letter in "abe"] for text in texts], np.float32)


def test_every_task_is_read_completely_and_in_order(directory):
    chinese, sts17, spanish = (load(str(directory)) for load in (load_chinese, load_sts17, load_spanish))
    assert {task.name: len(task.pairs) for task in chinese} == CHINESE_ROWS
    assert [task.name for task in sts17] == [f"STS17 {languages}" for languages in LANGUAGES]
    assert [len(task.pairs) for task in [*sts17, *spanish]] == [250] * 10 + [804]
    assert chinese[0].pairs[8] == ("好 8 a", "好 8 bbb a") and chinese[0].scores[:3] == [0.0, 1.0, 0.0]
    assert spanish[0].pairs[480] == ("wikipedia 0", "wikipedia 0 a"), "news first"
    assert chinese[1].source == "SentEval LCQMC/LCQMC.test.data"


def test_semeval_is_scored_by_pearson_and_the_questions_by_spearman(directory):
    results = evaluate(letters, ["sts-multilingual", "sts-spanish", "chinese"], str(directory))["results"]
    assert {result["metric"] for result in results if result["task"].startswith("STS")} == {"pearson"}
    assert {result["metric"] for result in results if result["suite"] == "chinese"} == {"spearman"}
    (task,) = load_spanish(str(directory))
    first, second = (letters([pair[side] for pair in task.pairs]).astype(float) for side in (0, 1))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / np.where(norms == 0, 1, norms)
    (spanish,) = [result for result in results if result["task"] == "STS14-es"]
    assert spanish["value"] == pytest.approx(100 * np.corrcoef(cosines, task.scores)[0, 1], abs=1e-9)


def test_models_are_compared_by_the_metric_of_the_task(directory):
    (task,) = load_spanish(str(directory))
    (result,) = compare(letters, lambda texts: letters(texts) ** 2, [task], resamples=20)
    assert result["old"] == pytest.approx(task.results(letters)[0]["value"])
    spearman = PairTask("toy", task.pairs, task.scores, "here")
    assert compare(letters, letters, [spearman], resamples=20)[0]["old"] != result["old"]


@pytest.mark.parametrize(
    ("load", "file", "change", "part"),
    [
        (load_chinese, "BQ/BQ.test.data", lambda lines: lines[1:], "pairs in SentEval BQ/BQ.test.data, got 9999"),
        (load_chinese, "LCQMC/LCQMC.test.data", lambda lines: ["no label", *lines[1:]], "LCQMC.test.data, line 1:"),
        (load_sts17, "STS/STS2017-extended/STS.en-tr.txt", lambda lines: lines[:-1], "STS17 en-tr: expected 250"),
        (load_spanish, "STS/STS14-es-test/STS.gs.news.txt", lambda lines: lines[:-1], "but STS.gs.news.txt has 479"),
        (load_spanish, "STS/STS14-es-test/STS.gs.news.txt", lambda lines: ["", *lines[1:]], "got 803"),
    ],
)
def test_damaged_data_is_refused_with_the_place_of_the_damage(directory, load, file, change, part):
    path = directory / file
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    path.write_text("\n".join(change(lines)) + "\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        load(str(directory))
    assert part in str(error.value)


def test_spanish_needs_a_directory():
    with pytest.raises(UserError, match="STS14-es: no data set on the Hub .* give --data DIR"):
        load_spanish("hub")


def served(rows, broken=None):
    """Rows of a data set as JSON Lines, one of them without its second sentence."""
    lines = [
        dict(zip(("sentence1", "sentence2", "score"), (*pair("hub", n), n % 2), strict=True)) for n in range(rows)
    ]
    if broken is not None:
        lines[broken]["sentence2"] = None
    return "\n".join(map(json.dumps, lines)).encode()


FROM_THE_HUB = """
import json
from csezoo.training.errors import UserError
from csezoo.training.evaluation.tasks.multilingual import load_chinese, load_sts17

tasks = load_sts17("hub")
print(json.dumps([[task.name, task.metric, task.receipt()] for task in tasks]))
try:
    load_chinese("hub")
except UserError as error:
    print(json.dumps(str(error)))
"""


def test_every_configuration_is_read_from_the_hub_at_its_pinned_commit(tmp_path):
    repository, revision, _ = STS17
    rows = {**dict.fromkeys(LANGUAGES, 250), "ko-ko": 2846}
    configs = [f"- config_name: {name}\n  data_files:\n  - split: test\n    path: {name}/*\n" for name in rows]
    files = {"README.md": ("---\nconfigs:\n" + "".join(configs) + "---\n").encode()}
    files |= {f"{name}/test.jsonl": served(count) for name, count in rows.items()}
    with HubServer() as hub:
        hub.repos[repository] = [Commit(revision, "pinned", files)]
        hub.commit(repository, "a later commit", {})
        _, (name, revision, _) = CHINESE["BQ"]
        hub.repos[name] = [Commit(revision, "pinned", {"test.jsonl": served(10000, broken=41)})]
        done = run_python("-c", FROM_THE_HUB, **hub.environment(tmp_path / "hf"))
    assert done.returncode == 0, done.stderr
    tasks, error = map(json.loads, done.stdout.splitlines())
    assert {name: receipt["rows"] for name, _, receipt in tasks} == {f"STS17 {name}": n for name, n in rows.items()}
    assert {(metric, r["dataset"], r["revision"]) for _, metric, r in tasks} == {("pearson", *STS17[:2])}
    content = "".join("\t".join([*respaced(pair("hub", n)), str(n % 2)]) + "\n" for n in range(250))
    assert tasks[1][2]["sha256"] == hashlib.sha256(content.encode()).hexdigest()
    assert error == "BQ: C-MTEB/BQ, row 42 of test: expected a sentence pair with a score"
