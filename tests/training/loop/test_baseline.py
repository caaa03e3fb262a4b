"""What a run is compared with: its base model as it is served, or a bare encoder as the run reads it."""

from functools import partial
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from csezoo.training.errors import UserError
from csezoo.training.evaluation import evaluate_tasks
from csezoo.training.evaluation.tasks.sts import load_pairs_file
from csezoo.training.files import read_json
from csezoo.training.loop.runs import run_recipe
from csezoo.training.recipes import load_recipe, make_recipe
from tests.conftest import SENTENCES, sentence_transformer
from tests.training.runs import lines, train, values


@pytest.fixture(scope="module")
def served(bases, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("served") / "served"
    sentence_transformer(bases["bert"]).save(str(directory))
    return directory


@pytest.fixture
def on_served(served, train_file, dev_file, tmp_path):
    """A function that returns the keys of a run on the served encoder."""
    return partial(values, served, train_file, dev_file, tmp_path / "run")


@pytest.fixture(scope="module")
def adapted(served, train_file, dev_file, judging_file, tmp_path_factory):
    """The directory, the results and the last lines of a run on a served encoder, with keys set against it."""
    output = tmp_path_factory.mktemp("runs") / "adapted"
    return output, train(values(served, train_file, dev_file, output, test_file=str(judging_file), pooling="cls"))


def test_the_baseline_is_the_encoder_as_sentence_transformers_serves_it(adapted, served, dev_file):
    output, results = adapted
    theirs = SentenceTransformer(str(served), device="cpu")
    (expected,) = evaluate_tasks(theirs.encode, [load_pairs_file(str(dev_file))])
    assert results["baseline"]["name"] == "as served"
    scores = {result["task"]: result["value"] for result in results["baseline"]["results"]}
    assert scores == pytest.approx({"dev": expected["value"], "test": expected["value"]}, abs=1e-3)
    as_served, read = lines(output)[:2]
    assert as_served == {"step": 0, "as served": scores["dev"]}
    assert read["step"] == 0 and abs(read["dev"] - scores["dev"]) > 0.1, "the recipe reads it by cls"


def test_the_gain_has_the_interval_of_a_paired_bootstrap(adapted):
    gain, results = adapted[1]["gain"], adapted[1]["results"]
    assert (gain["name"], gain["of"]) == ("as served", "test")
    now = next(result["value"] for result in results if result["task"] == "test")
    assert gain["now"] == now and gain["difference"] == pytest.approx(now - gain["before"], abs=1e-6)
    assert gain["low"] < gain["difference"] < gain["high"]


def test_the_card_has_the_scores_before_beside_those_after(adapted):
    output, results = adapted
    card = (output / "best" / "README.md").read_text(encoding="utf-8")
    before = {result["task"]: result["value"] for result in results["baseline"]["results"]}
    now = {result["task"]: result["value"] for result in results["results"]}
    assert "| task | pairs | as served | Spearman | data |" in card
    assert f"| test | {len(SENTENCES) // 2} | {before['test']:.2f} | {now['test']:.2f} |" in card


def test_sentences_of_the_user_s_files_are_in_no_card_and_no_results(adapted):
    output, _ = adapted
    for file in (output / "best" / "README.md", output / "results.json", output / "baseline.json"):
        text = file.read_text(encoding="utf-8")
        assert not [sentence for sentence in SENTENCES if sentence in text], file


def test_a_run_that_is_not_better_says_so(on_served, capsys):
    results = train(on_served(learning_rate=1e-30, max_steps=2))
    captured = capsys.readouterr()
    score = results["gain"]["before"]
    line = f"dev, which chose the checkpoint: as served {score:.2f}, now {score:.2f}: +0.00, 95 % interval"
    assert line in captured.out and "not better than as served" in captured.out
    assert "a serving model that is no better need not be replaced" in captured.err


def test_the_baseline_of_a_bare_encoder_is_named_for_what_it_is(tiny, tmp_path):
    baseline = train(tiny(max_steps=2, pooling="mean"))["baseline"]
    first = lines(tmp_path / "run")[0]
    assert baseline["name"] == "untrained, mean"
    assert baseline["results"][0]["value"] == first["dev"], "it is encoded once"


def test_several_seeds_each_have_their_gain(on_served, tmp_path, capsys):
    results = train(on_served(max_steps=2, seeds=[1, 2]))
    assert [run["gain"]["name"] for run in results["runs"]] == ["as served"] * 2
    printed = capsys.readouterr().out
    assert all(f"seed {seed}, dev, which chose the checkpoint: as served" in printed for seed in (1, 2))
    assert "as served" in (tmp_path / "run" / "best" / "README.md").read_text(encoding="utf-8")


def test_a_resumed_run_keeps_its_baseline(on_served, tmp_path):
    recipe = on_served(max_steps=4)
    first = train(recipe)
    (tmp_path / "run" / "results.json").unlink()
    assert train(recipe)["gain"] == first["gain"]
    assert read_json(tmp_path / "run" / "baseline.json")["name"] == "as served"


def test_a_run_that_is_resumed_with_other_pairs_is_not_compared(on_served, judging_file, tmp_path):
    """Of tests of the same name, and of the scores on tests with those on dev."""
    recipe = on_served(max_steps=1, test_file=str(judging_file))
    train(recipe)
    others = tmp_path / "others.csv"
    rows = judging_file.read_text(encoding="utf-8").splitlines()
    others.write_text("\n".join(rows[:-2]) + "\n", encoding="utf-8")
    for test_file in (str(others), None):
        (tmp_path / "run" / "results.json").unlink()
        assert not train(recipe, test_file=test_file, force=True).get("gain")


@pytest.mark.parametrize("given", ["the same file", "nothing"])
def test_pairs_that_would_choose_and_judge_are_split_and_do_not_ask_the_hub(on_served, dev_file, capsys, given):
    keys = on_served(max_steps=1, eval_data="hub")
    results = train(keys, **{"test_file": str(dev_file)} if given != "nothing" else {})
    rows = {result["task"]: result["rows"] for result in results["results"]}
    assert sum(rows.values()) == len(SENTENCES) // 2 and min(rows.values()) > len(SENTENCES) // 6
    assert results["gain"]["of"] == "test"
    assert results["neighbours"] == [], "half of a private file is private"
    line = f"dev_file: {rows['dev']} pairs choose the checkpoint, the other {rows['test']} judge it"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    "rows", ["a cat,a dog,1\na bird,a cat,2\n" * 5, "".join(f"a cat,{n} dogs,{n == 0:d}\n" for n in range(40))]
)
def test_too_few_pairs_to_choose_and_to_judge_are_refused(on_served, tmp_path, rows):
    few = tmp_path / "few.csv"
    few.write_text("sentence1,sentence2,score\n" + rows, encoding="utf-8")
    with pytest.raises(UserError, match="dev_file: .0 pairs are too few, or too alike, to choose a checkpoint"):
        train(on_served(dev_file=str(few), eval_data="hub"))


def test_graded_pairs_as_labelled_pairs_explain_that_they_choose_and_do_not_train(on_served, dev_file):
    keys = on_served(nli_file=str(dev_file), nli_steps=1, nli_classes=2)
    with pytest.raises(UserError, match="graded pairs, which choose the best checkpoint and do not train; give them"):
        train(keys)


def test_a_contrastive_loss_that_is_almost_0_from_the_start_is_worth_a_line(on_served, tmp_path, capsys):
    keys = on_served(max_steps=10, temperature=1e-4, learning_rate=1e-30)
    train(keys, train_file=str(few_sentences(tmp_path)))
    assert "this encoder tells the sentences of a batch apart already and learns little" in capsys.readouterr().err


def test_a_last_batch_of_one_sentence_is_not_a_loss_that_is_almost_0(on_served, tmp_path, capsys):
    file = tmp_path / "file.txt"
    file.write_text("".join(f"{text}\n" for text in SENTENCES[:19]), encoding="utf-8")
    train(on_served(max_steps=10, batch_size=2), train_file=str(file))
    assert "learns little" not in capsys.readouterr().err


def few_sentences(directory: Path) -> Path:
    """Sentences that a tiny random encoder tells apart in spite of its dropout."""
    file = directory / "few.txt"
    file.write_text("cat\nthe old river wants the small tree .\n", encoding="utf-8")
    return file


def test_the_base_model_as_it_is_served_can_be_the_teacher(on_served, bases, tmp_path):
    keys = on_served(max_steps=2, teachers=["base"], rank_weight=1.0)
    train(keys, dropout=0.0, learning_rate=1e-30, contrastive_weight=0.0)
    losses = [line["rank"] for line in lines(tmp_path / "run") if "rank" in line]
    recipe = make_recipe({**keys, "base_model": str(bases["bert"]), "output_dir": str(tmp_path / "bare")})
    assert len(losses) == 2 and all(loss > 0 for loss in losses)
    with pytest.raises(UserError, match="teachers: .*bert is a bare encoder, which has no vectors to keep"):
        run_recipe(recipe)


def test_a_paper_s_recipe_on_a_served_encoder_names_each_difference(on_served, capsys):
    keys = on_served(max_steps=1)
    run_recipe(load_recipe("simcse-bert-base-uncased", keys))
    errors = capsys.readouterr().err
    assert "pooling: cls is used; served is served with mean" in errors
    assert "max_length: 32 is used; served is served with 24" in errors
    assert "normalize" not in errors.replace("normalize true", "")


@pytest.mark.parametrize("name", ["adapt", "adapt-nli", "adapt-triplets", "adapt-distil"])
def test_a_recipe_for_adapting_serves_its_base_model_s_way(name, served, train_file, dev_file, tmp_path, capsys):
    triplets = tmp_path / "triplets.csv"
    rows = [f"{SENTENCES[row]},{SENTENCES[row + 1]},{SENTENCES[row + 40]}" for row in range(32)]
    triplets.write_text("\n".join(["anchor,positive,negative", *rows]) + "\n", encoding="utf-8")
    keys = {"base_model": str(served), "dev_file": str(dev_file), "output_dir": str(tmp_path / "run"), "seeds": "1"}
    keys |= {"train_file": str(triplets if name == "adapt-triplets" else train_file), "max_steps": "2"}
    keys |= {"eval_data": "none", "batch_size": "16", "report_to": "none"}
    if name == "adapt-nli":
        keys |= {"nli_file": str(triplets), "nli_columns": "anchor, positive, negative", "nli_steps": "2"}
    run_recipe(load_recipe(name, keys))
    first, second = (SentenceTransformer(str(each), device="cpu") for each in (served, tmp_path / "run" / "best"))
    assert [type(module) for module in second] == [type(module) for module in first]
    assert second.max_seq_length == first.max_seq_length
    assert "is used; served is served with" not in capsys.readouterr().err
