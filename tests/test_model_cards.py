"""Every number on the cards comes from a results file or from a table of a paper."""

import ast
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from csezoo.modeling import METHODS
from csezoo.training.cards.card_tables import command
from csezoo.training.cards.entries import entries
from csezoo.training.cards.index import write_cards
from csezoo.training.cards.method_texts import NLI, all_ideas, ideas, limits, text_names
from csezoo.training.cards.model_card import INITIAL, UNTRAINED, model_card, recipe_card
from csezoo.training.cards.published import published
from csezoo.training.cli.parser import main
from csezoo.training.evaluation.report import AVERAGE
from csezoo.training.evaluation.tasks.names import RELEASED_PAIRS, STS_TASKS
from csezoo.training.evaluation.tasks.senteval import REPOSITORY as SENTEVAL
from csezoo.training.pictures.captions import PICTURES
from csezoo.training.recipes import FREE_KEYS, file_name, load_recipe, make_recipe, parse_overrides, recipe_names
from csezoo.training.recipes.released import released

ROOT = Path(__file__).parents[1]
CARDS = ROOT / "model_cards"
RUNS = sorted(path.parent for path in CARDS.glob("*/results.json"))


def read(run):
    return json.loads((run / "results.json").read_text(encoding="utf-8"))


def says(path):
    """What a card tells its reader, however it is worded: metadata, code, cells of tables, links, and all numbers."""
    card = ModelCard(path.read_text(encoding="utf-8"), ignore_metadata_errors=True)
    code = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    prose = code.sub("", card.text)
    rows = [line.split("|")[1:-1] for line in prose.splitlines() if line.startswith("|")]
    return {
        "metadata": card.data.to_dict(),
        "code": code.findall(card.text),
        "rows": [[cell.strip() for cell in row] for row in rows],
        "links": sorted(re.findall(r"\]\((.+?)\)", prose)),
        "numbers": sorted(re.findall(r"\d+(?:\.\d+)?", prose)),
    }


def cards(directory):
    return {path.relative_to(directory).as_posix(): says(path) for path in directory.rglob("README.md")}


def test_the_committed_cards_say_what_the_command_writes(tmp_path, capsys):
    """So no number on them is typed by hand."""
    written = tmp_path / "model_cards"
    shutil.copytree(CARDS, written, ignore=shutil.ignore_patterns("README.md", "*.svg"))
    main(["cards", "--out", str(written)])
    assert capsys.readouterr().out == f"{written}: {len(recipe_names()) + len(RUNS) + len(released())} cards\n"
    assert cards(written) == cards(CARDS)
    assert (written / "results.csv").read_bytes() == (CARDS / "results.csv").read_bytes()
    pictures = [{path.relative_to(root).as_posix() for path in root.rglob("*.svg")} for root in (written, CARDS)]
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_command_on_a_card_yields_the_recipe_of_the_run(run):
    """Except that files and directories have no path."""
    text = ModelCard.load(run / "README.md").text
    _, arguments = re.search(r"```bash\n(.+?) -m csezoo.training.train (.+?)\n```", text, re.DOTALL).groups()
    name, *options = shlex.split(arguments.replace("\\\n", " "))
    again, recipe = load_recipe(name, parse_overrides(options)), load_recipe(str(run / "recipe.yaml"))
    if name == "recipe.yaml":
        pytest.skip(f"{run.name} does not say which recipe it was started from")
    for key, value in recipe.to_dict().items():
        if key not in FREE_KEYS:
            same = [file_name(v) if isinstance(v, str) else v for v in (value, again.to_dict()[key])]
            assert same[0] == same[1], key


@pytest.mark.parametrize("name", recipe_names())
def test_the_card_of_an_untrained_recipe_says_so_and_shows_the_papers_numbers(name):
    recipe = load_recipe(name)
    card = recipe_card(recipe)
    assert UNTRAINED in card.text
    assert card.data.eval_results is None and card.data.base_model == recipe.base_model
    for row in published(name):
        assert row.source in card.text and all(row.shown(task) in card.text for task in row.scores)
    relation = None if text_names(recipe)[0] == "untrained" or recipe.base_model is None else "finetune"
    assert card.data.get("base_model_relation") == relation


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_card_of_a_recipe_links_the_runs_that_change_its_settings(run):
    card = CARDS / load_recipe(str(run / "recipe.yaml")).recipe / "README.md"
    text = card.read_text(encoding="utf-8")
    assert f"[{run.name}](../{run.name}/README.md)" in text and UNTRAINED in text


def test_a_card_says_when_the_labelled_data_are_used():
    def settings(name: str) -> str:
        return recipe_card(load_recipe(name)).text

    two_stages = settings("simcse-nli-then-wiki-bert-base-uncased")
    assert "| first stage, on labelled data | updates: 130 |\n| second stage | updates: 200 |" in two_stages
    assert two_stages.index("Supervised SimCSE (") < two_stages.index("\nSimCSE ("), "in the order of training"
    assert "This recipe is the zoo's own." in two_stages
    assert "| epochs | 1 |" in settings("sbert-nli-bert-base-uncased")
    each_update = settings("consert-joint-bert-base-uncased")
    assert "| nli_weight | 3.33 |" in each_update and "stage on labelled data" not in each_update


def test_the_card_of_an_ablation_does_not_say_that_it_was_trained_on_labelled_pairs():
    for changes, expected in (({}, True), ({"nli_steps": 0}, False)):
        card = model_card(load_recipe("diffaug-bert-base-uncased-semi", changes), {})
        assert ("labelled data" in card.text, NLI in card.text) == (expected, expected)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_card_names_a_local_data_set_without_its_path_and_not_as_one_of_the_hub(absolute, tmp_path, monkeypatch):
    shards = tmp_path / "private" / "shards"
    shards.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("simcse-bert-base-uncased", {"dataset": str(shards) if absolute else "private/shards"})
    card = model_card(replace(recipe, dataset_file=None), {})
    assert card.data.datasets is None and "private" not in str(card)
    assert "--dataset shards" in card.text and "| data | shards |" in card.text


@pytest.mark.parametrize(
    ("name", "limit", "read"),
    [
        (
            "flow-stsb-bert-base-uncased",
            "The STS-B score is therefore not measured on unseen",
            "mteb/stsbenchmark-sts",
        ),
        ("consert-bert-base-uncased", "No STS score is therefore measured on unseen sentences", SENTEVAL),
    ],
)
def test_a_card_says_which_scores_are_of_sentences_that_the_model_was_trained_on(name, limit, read):
    """And its metadata names what was read for them, which `dataset` does not."""
    card = recipe_card(load_recipe(name))
    assert limit in card.text and card.data.datasets == [read]
    of_a_file = load_recipe(name, {"train_file": "mine.txt", "dataset": None})
    assert limit not in recipe_card(of_a_file).text


@pytest.mark.parametrize(
    ("keys", "pooled"),
    [
        ({"base_model": "all-MiniLM-L6-v2", "pooling": "mean"}, "the mean of the last layer's vectors"),
        ({"pooling": "last2_mean"}, "the mean over the tokens of the average of the last two layers"),
        ({}, None),
    ],
)
def test_a_card_says_how_its_encoder_pools_and_not_how_the_paper_s_does(keys, pooled):
    card = model_card(load_recipe("adapt", {"method": "consert", **keys}), {}, adapter="here").text
    assert ("last two layers" in card) == ("last2_mean" in keys.values())
    assert f"The pooling takes {pooled}" in card if pooled else "The pooling takes" not in card


def test_an_adapter_s_commands_work_with_any_name():
    card = model_card(load_recipe("adapt", {"base_model": "b"}), {}, adapter='it\'s "a" b').text
    (command,) = re.findall("csezoo merge (.*) --to merged", card)
    assert shlex.split(command) == ['it\'s "a" b']
    (text,) = re.findall(r"model.load_adapter\((.*)\)", card)
    assert ast.literal_eval(text) == 'it\'s "a" b'


def test_a_card_cites_the_paper_of_two_methods_once():
    card = recipe_card(load_recipe("simcse-nli-then-wiki-bert-base-uncased"))
    assert card.text.count("@inproceedings{gao2021simcse,") == 1


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_hub_can_read_the_results_of_a_card(run):
    card = ModelCard.load(run / "README.md")
    results = card.data.eval_results
    again = model_index_to_eval_results(eval_results_to_model_index(run.name, results))
    assert again == (run.name, results)
    made = read(run)
    best = {
        result["task"]: result["value"]
        for result in made["results"]
        if "seeds" not in made or result["seed"] == made["best_seed"]
    }
    assert {result.dataset_name: result.metric_value for result in results} == {
        task: round(value, 2) for task, value in best.items()
    }


def measured(
    rows=RELEASED_PAIRS,
    base_model="google-bert/bert-base-uncased",
    seeds="1 2",
    mixed_precision=None,
    runs=None,
    neighbours=None,
    **options,
):
    """The card of an invented run of the SG-OPT recipe."""
    recipe = load_recipe(
        "sgopt-bert-base-uncased",
        {"base_model": base_model, "seeds": seeds.split(), "mixed_precision": mixed_precision},
    )
    results = [
        {"task": task, "metric": "spearman", "value": 70.0, "dataset": "d", "revision": None, "rows": rows[task]}
        for task in STS_TASKS
    ]
    report = {"results": [{**result, "seed": 1} for result in results], "neighbours": neighbours}
    report |= {"runs": runs} if runs else {}
    if " " in seeds:
        summary = [{"task": task, "mean": 75.0, "sd": 0.5, "n": 2} for task in (*STS_TASKS, AVERAGE)]
        report |= {"summary": summary, "best_seed": 1}
    return model_card(recipe, report, **options).text


def test_a_run_on_the_base_model_of_the_paper_is_compared_with_it():
    card = measured()
    assert "| STS12 | 3108 | 75.00 ± 0.50 | 70.00 | 66.84 ± 0.73 | +16.3 | d |" in card
    assert "**75.00 ± 0.50** | **70.00** | **74.62 ± 0.25** | **+0.8** |" in card
    assert "Kim et al. 2021 (SG-OPT), table 1." in card


def test_one_seed_is_compared_with_the_paper_without_a_distance():
    assert "| STS12 | 3108 | 70.00 | 66.84 ± 0.73 | d |" in measured(seeds="1")


def test_a_stand_in_encoder_or_other_pairs_are_not_compared_with_the_paper():
    assert "66.84" not in measured(base_model="./minilm")
    other_pairs = measured(rows={**RELEASED_PAIRS, "SICK-R": 9927})
    assert "66.84" in other_pairs and "68.16" not in other_pairs and "74.62" not in other_pairs


RUN = {
    "training": {"seconds": 90.0, "rows_per_second": 512.4, "processes": 2, "precision": "bf16"},
    "machine": {"device": "NVIDIA H100", "processor": "AMD EPYC 9654", "threads": 8},
}
RUN["training"] |= {"peak_rss_bytes": 3 * 2**30, "peak_device_bytes": 5 * 2**30}


def test_the_card_shows_cost_and_launch_options_of_the_results():
    card = measured(runs=[RUN, {**RUN, "training": {**RUN["training"], "seconds": 150.0}}])
    assert "| time | 2.0 minutes per seed, including dev evaluations |" in card
    assert "| speed | 512 training rows per second |" in card
    assert "| peak memory | 3.0 GiB (process), 5.0 GiB (GPU) |" in card
    assert "accelerate launch --multi_gpu --num_processes 2 --mixed_precision bf16 -m" in card
    assert "| machine | NVIDIA H100, processes: 2, precision: bf16, threads: 8 |" in card
    assert "| processor | AMD EPYC 9654 |" in card
    assert "were not recorded" in measured(), "older results have no cost"


def test_the_card_of_seeds_from_two_machines_shows_the_memory_of_both():
    on_cpu = {**RUN, "training": {**RUN["training"], "peak_device_bytes": None}}
    for runs in ([RUN, on_cpu], [on_cpu, RUN]):
        assert "| peak memory | 3.0 GiB (process), 5.0 GiB (GPU) |" in measured(runs=runs)


def test_the_command_on_a_card_sets_what_the_reader_s_own_configuration_would_change():
    on_cpu = {**RUN, "training": {**RUN["training"], "precision": "no", "processes": 1, "peak_device_bytes": None}}
    assert "accelerate launch --num_processes 1 --mixed_precision no -m" in measured(runs=[on_cpu])
    two = {**on_cpu, "training": {**on_cpu["training"], "processes": 2}}
    assert "ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 --mixed_precision no -m" in (
        measured(runs=[two])
    )
    chosen = measured(runs=[RUN], mixed_precision="auto")
    assert "--mixed_precision bf16 -m" in chosen and "auto" not in chosen


def test_a_run_of_a_user_s_own_recipe_is_trained_again_from_its_recipe_yaml(tmp_path):
    (tmp_path / "mine.yaml").write_text("base_model: base\n", encoding="utf-8")
    card = model_card(load_recipe(str(tmp_path / "mine.yaml")), {}).text
    assert "-m csezoo.training.train recipe.yaml" in card


def test_the_card_names_the_keys_that_make_a_run_another_one_than_the_paper_s():
    assert (
        "The paper's numbers for `sgopt-bert-base-uncased` are not shown, because this run changes `base_model`."
        in (measured(base_model="./minilm"))
    )


NEAR = {
    "query": "A cat sleeps.",
    "before": {"sentence": "A cat [x](y) runs.", "cosine": 0.991},
    "after": {"sentence": "A kitten naps.", "cosine": 0.8},
}


def test_a_card_shows_nearest_sentences_only_where_the_run_recorded_them():
    card = measured(neighbours=[NEAR])
    assert "| A cat sleeps. | 0.99 A cat [x]\\(y) runs. | 0.80 A kitten naps. |" in card
    assert "## Neighbours" in card and "## Neighbours" not in measured()


def test_a_card_shows_the_pictures_of_its_run():
    card = measured(pictures=["similarities.png"], published=False)
    assert f"![{PICTURES['similarities.png']}](similarities.png)" in card
    assert "![The idea of sgopt](../ideas/sgopt.svg)" in card
    assert "training_curves.png" not in card


def test_every_method_has_a_picture_of_its_idea():
    named = {name for recipe in recipe_names() for name in load_recipe(recipe).method.split("+")}
    for name in named:
        config = METHODS[name][0]()  # its own pooling and projection: not every method has those of SimCSE
        keys = {"method": name, "pooling": config.pooling, "projection": config.projection}
        assert f"{name}.svg" in {path.name for path in ideas(text_names(load_recipe("quickstart-simcse", keys)))}


def test_no_picture_is_a_copy_of_another():
    drawn = {name: re.sub("<title>.*</title>", "", file.read_text("utf-8")) for name, file in all_ideas().items()}
    assert len(set(drawn.values())) == len(drawn), sorted(drawn)


@pytest.fixture(scope="module")
def new_cards(tmp_path_factory) -> Path:
    """Cards of a directory with one run."""
    directory = tmp_path_factory.mktemp("cards")
    shutil.copytree(CARDS / "simcse-minilm", directory / "another")
    write_cards(directory)
    return directory


def test_a_new_run_gets_a_card_and_a_row_in_the_index(new_cards):
    (entry,) = [entry for entry in entries(new_cards) if entry.model.name == "another"]
    assert (entry.model.status, entry.model.base_model) == ("measured here", "minilm-mlm")
    assert "| [another](another/README.md) | simcse | minilm-mlm |" in (new_cards / "README.md").read_text("utf-8")


def test_the_released_checkpoints_are_listed_as_not_verified(new_cards):
    index = (new_cards / "README.md").read_text(encoding="utf-8")
    assert index.count("| published by its authors |") == len(released()) == 18
    name = "royokong/unsup-PromptBERT"
    row = next(line for line in index.splitlines() if line.startswith(f"| [{name}]"))
    assert "| bert-base-uncased |" in row and "| 78.87 |" in row, "the file's own score, not the mean over seeds"
    card = ModelCard.load(new_cards / "royokong--unsup-PromptBERT" / "README.md")
    assert card.data.license == "unknown" and "There is no license" in card.text
    assert f"csezoo convert {name} --to unsup-PromptBERT" in card.text


def test_a_damaged_results_file_is_named(tmp_path, capsys):
    shutil.copytree(CARDS / "simcse-minilm", tmp_path / "another")
    (tmp_path / "another" / "results.json").write_text("[]", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main(["cards", "--out", str(tmp_path)])
    assert "results.json: expected a JSON object, got list" in capsys.readouterr().err


def test_a_card_says_what_is_fitted_after_training_and_nothing_of_training_without_any():
    card = recipe_card(load_recipe("flow-bert-base-uncased")).text
    assert "| flow_epochs | 1.0 |" in card and "| flow_sentences | all |" in card
    assert "| learning rate |" not in card and "whitening" not in card.split("## Limits")[0]


def test_the_card_of_a_whitened_sentence_encoder_does_not_call_it_untrained():
    """A repository of sentence-transformers gives the recipe its length, see `follow_base`."""
    keys = {"base_model": "owner/encoder", "train_file": "mine.txt", "max_steps": 0, "whitening": 16}
    bare, served = (make_recipe({**keys, "served_length": length}) for length in (None, 256))
    assert "never trained to embed" in recipe_card(bare).content
    card = recipe_card(served)
    assert "never trained to embed" not in card.text and "devlin2019bert" not in card.text
    assert "The vectors are whitened" in card.text and not {"simcse", "contrastive-learning"} & set(card.data.tags)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [({"best_step": 0}, True), ({"soup": [0]}, True), ({"best_step": 0, "soup": [25]}, False), ({}, False)],
)
def test_a_card_says_if_no_update_was_better_than_the_model_before_training(changes, kept):
    """It counts of the seed whose weights are shown."""
    report = read(CARDS / "simcse-minilm")
    for run in report["runs"]:
        run["training"] |= changes if run["seed"] == report["best_seed"] else {}
    recipe = load_recipe(str(CARDS / "simcse-minilm" / "recipe.yaml"), {"train_file": "mine.txt"})
    card = model_card(recipe, report).text
    assert (f"Status: {INITIAL}" in card, "trained on `mine.txt`" in card) == (kept, not kept)


def test_the_index_names_labelled_data_too():
    data = {entry.model.name: entry.model.data for entry in entries(CARDS)}
    assert data["simcse-nli-then-wiki-minilm"] == "wiki_en_sentences.txt.gz + nli_triplets_train.csv"
    assert data["simcse-minilm"] == "wiki_en_sentences.txt.gz" and data["sbert-nli-bert-base-uncased"] == "all-nli"


def test_the_base_of_a_released_checkpoint_is_an_encoder_and_not_itself():
    for name, checkpoint in released().items():
        card = ModelCard.load(CARDS / name.replace("/", "--") / "README.md")
        assert card.data.base_model == checkpoint.base_model != name


def test_the_command_names_a_file_of_a_data_set_by_its_path_and_one_of_this_machine_by_its_name():
    keys = {"dataset": "owner/nli", "dataset_file": "pair/train-*.parquet", "dev_file": "/home/me/dev.csv"}
    shown = command(load_recipe("simcse-bert-base-uncased", keys), [])
    assert "--dataset_file 'pair/train-*.parquet'" in shown and "--dev_file dev.csv" in shown


@pytest.mark.parametrize(("language", "said"), [("en", True), ("de", False)])
def test_a_multilingual_model_is_said_to_know_only_english_if_it_was_trained_on_it(language, said):
    for name in ("simcse-mbert", "simcse-xlm-roberta-base"):
        lines = limits(load_recipe(name, {"language": language}))
        assert any("on English sentences only" in line for line in lines) is said
