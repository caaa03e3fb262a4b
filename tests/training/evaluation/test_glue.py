"""Fine-tuning on GLUE: reading the tasks, tokenizing, training, results and their receipts."""

import json
import shutil

import numpy as np
import pytest
import torch

from csezoo.training.cards.results_files import read_rows
from csezoo.training.cli.parser import main
from csezoo.training.errors import UserError
from csezoo.training.evaluation.glue.data import HUB, RELEASED_EXAMPLES, TASKS, GlueTask, load_glue_task
from csezoo.training.evaluation.glue.fine_tuning import FineTuning, classifier, finetune, measure, pair_tokenizer
from csezoo.training.files import read_json, write_json
from csezoo.training.loading.tokenizers import load_tokenizer
from csezoo.training.loop.building import build
from csezoo.training.publishing.repository import save_repository
from csezoo.training.recipes import make_recipe
from tests.conftest import SENTENCES
from tests.hub_server import Commit, HubServer
from tests.interpreters import run_python
from tests.repositories import edit_json
from tests.training.senteval_files import write

QUICK = FineTuning(learning_rate=5e-3, epochs=6, batch_size=16)
# The header and a line of each task's files, as GLUE distributes them.
LINES = {
    "CoLA": (None, "gj04\t{label}\t*\t{first}"),
    "SST-2": ("sentence\tlabel", "{first} \t{label}"),
    "MRPC": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", '{label}\t1\t2\t"{first}\t{second}'),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\ta\tb\tc\td\te\tf\t{first}\t{second}\t{label}",
    ),
    "QQP": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\t{first}\t{second}\t{label}"),
    "MNLI": (
        "index\tpromptID\tpairID\tgenre\tparse1\tparse2\tparse3\tparse4\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\ta\tb\tc\td\te\tf\tg\t{first}\t{second}\tneutral\t{label}",
    ),
    "QNLI": ("index\tquestion\tsentence\tlabel", "0\t{first}\t{second}\t{label}"),
    "RTE": ("index\tsentence1\tsentence2\tlabel", "0\t{first}\t{second}\t{label}"),
    "WNLI": ("index\tsentence1\tsentence2\tlabel", "0\t{first}\t{second}\t{label}"),
}


def texts(n):
    """Two sentences, and whether the first is about a cat."""
    first, second = SENTENCES[n * 7 % len(SENTENCES)], SENTENCES[n * 13 % len(SENTENCES)]
    return first, second, int("cat" in first)


def write_task(directory, name, labels):
    """Write the files of a task with the rows of the release, and twenty where it does not say how many."""
    header, line = LINES[name]
    for part, rows in RELEASED_EXAMPLES[name].items():
        examples = (texts(n) for n in range(rows or 20))
        lines = [line.format(first=first, second=second, label=labels[label]) for first, second, label in examples]
        write(directory / name / f"{part}.tsv", [*([header] if header else []), *lines])


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_read_from_glues_layout(tmp_path, monkeypatch, name):
    monkeypatch.setitem(RELEASED_EXAMPLES, name, dict.fromkeys(RELEASED_EXAMPLES[name], 20))
    labels = TASKS[name].labels or ("0.5", "4.75")
    write_task(tmp_path, name, labels)
    task = load_glue_task(name, str(tmp_path))
    assert list(task.parts) == list(RELEASED_EXAMPLES[name])
    for examples in task.parts.values():
        for n, (sides, label) in enumerate(examples):
            first, second, is_cat = texts(n)
            quoted = f'"{first}' if name == "MRPC" else first
            assert sides == ((quoted, second) if len(sides) == 2 else (first,))
            assert label == (is_cat if TASKS[name].labels else float(labels[is_cat]))
    assert (task.receipt()["dataset"], task.receipt()["rows"]) == (
        f"GLUE {name}",
        dict.fromkeys(RELEASED_EXAMPLES[name], 20),
    )


def test_cut_off_lines_of_qqp_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(RELEASED_EXAMPLES, "QQP", {"train": None, "dev": 20})
    write_task(tmp_path, "QQP", ("0", "1"))
    path = tmp_path / "QQP" / "train.tsv"
    path.write_text(path.read_text(encoding="utf-8") + "21\t1\t2\tbroken\n", encoding="utf-8")
    assert len(load_glue_task("QQP", str(tmp_path)).parts["train"]) == 20


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda lines: lines[:-1], "RTE: expected 277 examples in dev, got 276"),
        (
            lambda lines: [lines[0], lines[1].replace("entailment", "yes"), *lines[2:]],
            "dev.tsv, line 2: expected a text with one of the labels entailment",
        ),
        (lambda lines: [*lines[:4], "0\tcut", *lines[5:]], "dev.tsv, line 5: expected at least 4 columns, got 2"),
        (lambda lines: [lines[0].replace("label", "gold"), *lines[1:]], "dev.tsv: no column label"),
    ],
)
def test_damaged_files_are_refused_with_the_place_of_the_damage(tmp_path, change, part):
    write_task(tmp_path, "RTE", TASKS["RTE"].labels)
    path = tmp_path / "RTE" / "dev.tsv"
    path.write_text("\n".join(change(path.read_text(encoding="utf-8").splitlines())) + "\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_glue_task("RTE", str(tmp_path))
    assert part in str(error.value)


def test_a_missing_file_or_unknown_task_is_named(tmp_path):
    with pytest.raises(UserError, match=r"RTE/train.tsv is missing; --data must be a directory in GLUE's layout"):
        load_glue_task("RTE", str(tmp_path))
    with pytest.raises(UserError, match="'SST2' must be one of CoLA, SST-2"):
        load_glue_task("SST2", str(tmp_path))
    with pytest.raises(UserError, match="nyu-mll/glue could not be loaded from the Hub"):
        load_glue_task("RTE", "hub")


@pytest.mark.parametrize("values", [{"epochs": 0}, {"learning_rate": -1e-5}, {"batch_size": 0}, {"dev_share": 1}])
def test_settings_out_of_range_are_refused(values):
    with pytest.raises(UserError, match=next(iter(values))):
        FineTuning(**values)


def test_metrics_are_those_of_glue():
    logits = np.array([[0, 1], [0, 1], [0, 1], [1, 0], [1, 0], [0, 1]], float)
    labels = np.array([1, 1, 0, 0, 1, 1])  # 3 true positives, 1 false, 1 true negative, 1 false
    assert measure("MRPC", logits, labels) == pytest.approx({"accuracy": 100 * 4 / 6, "f1": 100 * 6 / 8})
    matthews = (3 * 1 - 1 * 1) / np.sqrt(4 * 4 * 2 * 2)
    assert measure("CoLA", logits, labels) == pytest.approx({"matthews": 100 * matthews})
    scores = np.array([[1.0], [2.0], [4.0]])
    measured = measure("STS-B", scores, np.array([1.0, 2.0, 3.0]))
    pearson = 100 * np.corrcoef(scores[:, 0], [1, 2, 3])[0, 1]
    assert measured == pytest.approx({"pearson": pearson, "spearman": 100})


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_constant_predictions_have_correlation_0():
    assert measure("STS-B", np.ones((3, 1)), np.arange(3.0)) == {"pearson": 0, "spearman": 0}
    assert measure("CoLA", np.ones((3, 2)), np.arange(3) % 2) == {"matthews": 0}


@pytest.mark.parametrize("name", ["WNLI", "STS-B"])
def test_a_score_of_outputs_that_are_not_finite_is_refused(name):
    with pytest.raises(UserError, match=f"{name}: .* not finite; check the weights, or lower --learning_rate"):
        measure(name, np.full((3, 2), np.nan), np.arange(3) % 2)


@pytest.fixture(scope="module")
def checkpoint(bases, tmp_path_factory):
    """A function that saves a zoo checkpoint with a prompt, by backbone."""

    def save(kind):
        prompt = ['This sentence of "{sentence}" means{mask}.']
        recipe = make_recipe({"base_model": str(bases[kind]), "name": "tiny", "pooling": "prompt", "prompts": prompt})
        built = build(recipe)
        directory = tmp_path_factory.mktemp("zoo") / kind
        save_repository(directory, built.model.model, built.serving_tokenizer, recipe)
        return str(directory)

    return save


def test_a_zoo_tokenizer_encodes_pairs_like_the_base_tokenizer(base, kind, checkpoint):
    model = checkpoint(kind)
    theirs, ours = load_tokenizer(str(base)), pair_tokenizer(model, classifier(model, 2).config)
    for sides in (SENTENCES[:1], SENTENCES[:2]):
        expected = theirs(*sides)
        assert dict(ours(*sides)) == {name: expected[name] for name in theirs.model_input_names}


def test_the_task_and_not_the_base_decides_the_loss(base, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    edit_json(tmp_path / "base" / "config.json", problem_type="multi_label_classification")
    assert classifier(str(tmp_path / "base"), 2).config.problem_type is None


def test_the_classifier_has_the_encoders_backbone_and_a_new_head(base, kind, checkpoint):
    torch.manual_seed(0)
    plain = classifier(str(base), 3).state_dict()
    zoo = classifier(checkpoint(kind), 3).state_dict()
    assert plain.keys() == zoo.keys()
    fresh = {name for name in plain if not name.startswith(f"{kind}.") or ".pooler." in name}
    assert fresh
    for name in plain.keys() - fresh:
        # The zoo's table of embeddings has another token in it, the template's mask token.
        rows = len(load_tokenizer(str(base))) if name.endswith("word_embeddings.weight") else None
        assert torch.equal(plain[name][:rows], zoo[name][:rows]), name
    torch.manual_seed(1)
    again = classifier(checkpoint(kind), 3).state_dict()
    drawn = {name for name in fresh if name.endswith("weight")}
    assert drawn == {name for name in plain if not torch.equal(zoo[name], again[name])}


def cats(name, rows, labels):
    """A task whose label depends on the animal in the first text."""
    sides = len(TASKS[name].texts)
    pairs = [texts(n) for n in range(sum(rows.values()))]
    examples = [((first, second)[:sides], labels[is_cat]) for first, second, is_cat in pairs]
    ends = np.cumsum(list(rows.values()))
    parts = {part: examples[end - count : end] for (part, count), end in zip(rows.items(), ends, strict=True)}
    return GlueTask(name, parts, "here")


@pytest.mark.parametrize("name", ["CoLA", "RTE", "STS-B"])
def test_a_simple_task_is_learnt(bases, name):
    labels = (0, 1) if TASKS[name].labels else (0.0, 5.0)
    results = finetune(str(bases["bert"]), cats(name, {"train": 240, "dev": 60}, labels), 1, QUICK)
    assert [result["metric"] for result in results] == list(TASKS[name].metrics)
    assert results[0]["value"] > 90, "three of four examples are of one class"
    for result in results:
        assert result["task"] == f"GLUE {name}"
        assert {"seed": 1, "tested": 60, "rows": {"train": 240, "dev": 60}, "epochs": 6}.items() <= result.items()


def test_a_run_depends_only_on_its_seed(checkpoint):
    model, task = checkpoint("roberta"), cats("STS-B", {"train": 64, "dev": 50}, (0.0, 5.0))
    settings = FineTuning(learning_rate=1e-3, epochs=1)
    first, again, other = (finetune(model, task, seed, settings)[0]["value"] for seed in (1, 1, 2))
    assert first == again != other


def test_dev_share_chooses_the_epoch_and_the_rest_of_dev_tests_it(bases):
    # A tenth of the matched rows chooses. There are fewer mismatched rows than that.
    rows = {"train": 120, "dev_matched": 50, "dev_mismatched": 4}
    settings = FineTuning(learning_rate=3e-3, epochs=2, batch_size=16, dev_share=0.1)
    results = finetune(str(bases["bert"]), cats("MNLI", rows, (0, 2)), 1, settings)
    assert [(result["task"], result["tested"]) for result in results] == [("GLUE MNLI-m", 45), ("GLUE MNLI-mm", 4)]
    with pytest.raises(UserError, match="dev_share: 0.001 of 50 examples selects none"):
        finetune(str(bases["bert"]), cats("MNLI", rows, (0, 2)), 1, FineTuning(dev_share=0.001))


def test_the_command_prints_mean_and_deviation_over_seeds_and_repeats_no_run_in_the_results_file(
    bases, tmp_path, capsys
):
    write_task(tmp_path, "WNLI", ("0", "1"))
    out = tmp_path / "glue.json"

    def results(*options, model="bert"):
        main(["glue", str(bases[model]), "--tasks", "WNLI", "--data", str(tmp_path), "--out", str(out), *options])
        return read_json(out)["results"]

    results("--seeds", "1", "--epochs", "1")
    report = read_json(out)
    report["results"][0]["value"] = -1.0  # no run returns this
    write_json(out, report)
    first, second = results("--seeds", "1", "2", "--epochs", "1")
    assert (first["seed"], first["value"], second["seed"]) == (1, -1.0, 2) and second["value"] >= 0
    capsys.readouterr()
    again = results("--seeds", "1", "2", "--epochs", "2", "--learning_rate", "1e-3")
    (line,) = capsys.readouterr().out.splitlines()
    assert again[:2] == [first, second]
    settings = [(result["seed"], result["epochs"], result["learning_rate"]) for result in again[2:]]
    assert settings == [(1, 2.0, 1e-3), (2, 2.0, 1e-3)], "other settings"
    values = [result["value"] for result in again[2:]]
    cell = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert line.split() == ["GLUE", "WNLI", *cell.split(), "(2", "seeds)"]
    assert read_rows(str(out)) == [("bert", {"GLUE WNLI": cell})], "the newest settings, both seeds"
    for result in again:
        assert {"metric", "dataset", "sha256", "rows", "learning_rate", "versions", "dtype"} <= result.keys()
    content = out.read_bytes()
    with pytest.raises(SystemExit, match="2"):
        results("--seeds", "1", model="roberta")
    assert "contains results of another model" in capsys.readouterr().err and out.read_bytes() == content


FROM_THE_HUB = """
import json
from csezoo.training.evaluation.glue.data import load_glue_task

tasks = [load_glue_task(name, "hub") for name in ("RTE", "STS-B")]
print(json.dumps([[task.receipt(), task.parts["dev"][:2]] for task in tasks]))
"""


def test_tasks_from_the_hub_are_read_at_the_pinned_commit(tmp_path):
    repository, revision = HUB
    configs, files = [], {}
    for name, label in (("RTE", lambda n: n % 2), ("STS-B", lambda n: n % 11 / 2)):
        config = name.lower().replace("-", "")
        splits = {part.replace("dev", "validation"): rows for part, rows in RELEASED_EXAMPLES[name].items()}
        paths = "".join(f"  - split: {split}\n    path: {config}/{split}.jsonl\n" for split in splits)
        configs.append(f"- config_name: {config}\n  data_files:\n{paths}")
        for split, rows in splits.items():
            lines = [{"sentence1": f"a {n} ", "sentence2": "b", "label": label(n)} for n in range(rows)]
            files[f"{config}/{split}.jsonl"] = "\n".join(map(json.dumps, lines)).encode()
    files["README.md"] = ("---\nconfigs:\n" + "".join(configs) + "---\n").encode()
    with HubServer() as hub:
        hub.repos[repository] = [Commit(revision, "pinned", files)]
        hub.commit(repository, "a later commit", {})
        done = run_python("-c", FROM_THE_HUB, **hub.environment(tmp_path / "hf"))
    assert done.returncode == 0, done.stderr
    (rte, rte_rows), (stsb, stsb_rows) = json.loads(done.stdout.splitlines()[-1])
    assert (rte["dataset"], rte["revision"], rte["rows"]) == (*HUB, RELEASED_EXAMPLES["RTE"])
    assert stsb["rows"] == RELEASED_EXAMPLES["STS-B"]
    assert rte_rows == [[["a 0", "b"], 0], [["a 1", "b"], 1]] and stsb_rows[1] == [["a 1", "b"], 0.5]
