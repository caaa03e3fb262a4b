"""The tables of a card: results beside the paper's numbers, settings, cost; and the training command."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from typing import Any

from ..evaluation.report import AVERAGE, average, tests_only
from ..recipes import FREE_KEYS, QUICKSTARTS, Recipe, changes, file_name, is_hub_id, load_recipe, recipe_names
from ..recipes.reading import as_word
from ..tables import code, link, markdown_table, plain
from .listing import STS_AVERAGE, Model, shown_score
from .method_texts import trained
from .published import TRANSFER_AVERAGE, PublishedRow, comparable, published, same_pairs
from .results_files import distance

PROTOCOL = "Spearman correlation (× 100) of cosine similarity and gold score, over all pairs of a task"
SIDES = ("before", "after")
AVERAGES = (AVERAGE, TRANSFER_AVERAGE)
RAW_TEXT = (
    "The data from `mteb/` are the same pairs as the paper's, but as raw text. The paper used SentEval's files, which "
    "contain lower-cased tokens; a cased vocabulary splits these into other word pieces."
)


def results_table(
    recipe: Recipe, results: list[dict], summary: list[dict] | None, baseline: dict[str, Any] | None = None
) -> str:
    """Return the table of results, with the paper's numbers and the distance to them if it reports the same pairs."""
    if not results:
        return "Not evaluated."
    pairs, seeds = same_pairs(results), {entry["task"]: entry for entry in summary or []}
    changed = changes(recipe)
    beside = [row for row in comparable(recipe.recipe, changed) if row.scores.keys() & pairs]
    scores = _scores(results)
    columns: dict[str, dict[str, str]] = {}  # by heading, the cells of the tasks
    if baseline and baseline["results"]:
        columns[baseline["name"]] = {task: f"{score:.2f}" for task, score in _scores(baseline["results"]).items()}
    if seeds:
        columns["seeds"] = {task: f"{seeds[task]['mean']:.2f} ± {seeds[task]['sd']:.2f}" for task in scores}
    own = "these weights" if seeds else "Spearman"
    columns[own] = {task: f"{score:.2f}" for task, score in scores.items()}
    if beside:
        paper = beside[0]
        known = {task: paper.scores[task] for task in scores if task in paper.scores and task in pairs}
        columns["paper"] = {task: paper.shown(task) for task in known}
        if seeds:
            far = {task: distance(seeds[task]["mean"], seeds[task]["sd"], number) for task, number in known.items()}
            columns["distance in sd"] = {task: f"{deviations:+.1f}" for task, deviations in far.items()}
    rows = []
    for result in results:
        cells = {heading: column.get(result["task"], "") for heading, column in columns.items()}
        cells[own] = f"{result['value']:.2f}"  # a file of pairs may have the name of a test
        rows.append([plain(result["task"]), str(result["rows"]), *cells.values(), plain(result["dataset"])])
    if AVERAGE in scores:
        averages = [column.get(AVERAGE, "") for column in columns.values()]
        rows.append([f"**{AVERAGE}**", "", *(cell and f"**{cell}**" for cell in averages), ""])
    header = ["task", "pairs", *columns, "data"]  # which is long, and a narrow page shows the first columns
    protocol = PROTOCOL
    if seeds:
        protocol += f": mean ± standard deviation over {len(recipe.seeds)} seeds, and the score of these weights"
    return "\n\n".join(
        [f"{protocol}.", markdown_table(header, *rows), *_paper_lines(recipe, changed, beside, results)]
    )


def _scores(results: list[dict]) -> dict[str, float]:
    """Return the scores of each task, and the average of several tests."""
    scores = {result["task"]: result["value"] for result in results}
    return scores | ({AVERAGE: average(results)} if len(tests_only(results)) > 1 else {})


def _paper_lines(
    recipe: Recipe, changed: list[str] | None, beside: list[PublishedRow], results: list[dict]
) -> list[str]:
    """Return the source of the paper's numbers, or why they are not shown although there are some."""
    if beside:
        raw = any(result["dataset"].startswith("mteb/") for result in results)
        return [f"Source of the paper's numbers: {_cited(beside[0])}.", *([RAW_TEXT] if raw else [])]
    if recipe.recipe and changed and published(recipe.recipe):
        keys = ", ".join(f"`{key}`" for key in changed)
        return [f"The paper's numbers for {code(recipe.recipe)} are not shown, because this run changes {keys}."]
    return []


def models_table(models: Sequence[Model]) -> str:
    """Return a table of measured runs with links to their cards, which are beside the card that shows it."""
    rows = [
        [link(run.name, f"../{run.card}"), plain(run.base_model), plain(run.data), shown_score(run)] for run in models
    ]
    return markdown_table(["run", "base model", "data", STS_AVERAGE], *rows)


def published_tables(recipe: str) -> str:
    """Return all rows of the papers for a recipe as tables."""
    rows = published(recipe)
    if not rows:
        return "No paper reports this setting on the STS or transfer tasks."
    return "\n\n".join(["The papers report:", *score_tables(rows)])


def score_tables(rows: list[PublishedRow]) -> list[str]:
    """Return a table and its source for each row."""
    parts = []
    for row in rows:
        tasks = [f"**{task}**" if task in AVERAGES else task for task in row.scores]
        parts += [markdown_table(tasks, [row.shown(task) for task in row.scores]), f"Source: {_cited(row)}."]
    return parts


def _cited(row: PublishedRow) -> str:
    return f"{row.source} ({row.note})" if row.note else row.source


def settings_table(recipe: Recipe) -> str:
    """Return the table of settings: data, optimisation, the method's keys, and the stage on labelled pairs."""
    rows: dict[str, object] = {
        "data": _source(recipe, recipe.train_file, recipe.dataset_file, recipe.dataset, recipe.text_columns),
        "length": f"{recipe.max_length} word pieces" if recipe.tells_length else "that of the base model",
        **(_training(recipe) if trained(recipe) or recipe.whitening_updates else {}),
        **_fitted(recipe),
        "seeds": ", ".join(map(str, recipe.seeds)),
        **({"soup": f"the average of up to {recipe.soup} best checkpoints"} if recipe.soup else {}),
    }
    rows |= {key: value for key, value in recipe.model.items() if key != "prompts"}
    cells = {key: plain(as_word(value)) for key, value in rows.items()}
    templates = enumerate(recipe.model.get("prompts") or [], 1)
    cells |= {f"prompt of view {number}": code(text) for number, text in templates}
    if recipe.teachers:
        cells["teachers"] = plain(", ".join(map(file_name, recipe.teachers)))
        cells |= {"teacher_share": f"{recipe.teacher_share:g}"} if len(recipe.teachers) > 1 else {}
    if recipe.reads_labelled_pairs:
        cells |= _labelled(recipe)
    return markdown_table(["", ""], *map(list, cells.items()))


def _fitted(recipe: Recipe) -> dict[str, object]:
    """Return the settings of what is fitted after training: a whitening or a flow."""
    if not (recipe.whitening or recipe.flow):
        return {}
    kind = "flow" if recipe.flow else "whitening"
    settings = {key: value for key, value in recipe.to_dict().items() if key.startswith(kind)}
    return {key: "all" if value is None else value for key, value in settings.items()}


def _training(recipe: Recipe) -> dict[str, object]:
    """Return batch size, learning rate and the length of training. A stage on labelled data comes before the other."""
    settings: dict[str, object] = {"batch size": recipe.batch_size, "learning rate": f"{recipe.learning_rate:g}"}
    unit, length = ("epochs", f"{recipe.epochs:g}") if recipe.max_steps is None else ("updates", recipe.max_steps)
    if not (recipe.nli_steps or recipe.nli_epochs):
        return {**settings, unit: length}
    first, of_first = ("updates", recipe.nli_steps) if recipe.nli_steps else ("epochs", f"{recipe.nli_epochs:g}")
    if recipe.max_steps == 0:
        return {**settings, first: of_first}
    stages = {"first stage, on labelled data": f"{first}: {of_first}", "second stage": f"{unit}: {length}"}
    return {**settings, **stages}


def _labelled(recipe: Recipe) -> dict[str, str]:
    """Return the settings of the labelled data."""
    cells = {"labelled data": plain(_source(recipe, recipe.nli_file, recipe.nli_dataset_file, recipe.nli_dataset))}
    if recipe.nli_steps or recipe.nli_epochs:
        rate = recipe.learning_rate if recipe.nli_learning_rate is None else recipe.nli_learning_rate
        cells["nli_learning_rate"] = f"{rate:g}"
    return {**cells, "nli_batch_size": str(recipe.nli_batch_size)}


def _source(
    recipe: Recipe, file: str | None, of_dataset: str | None, dataset: str | None, columns: list[str] | None = None
) -> str:
    """Return the name of the file or of the dataset; without either, the columns that the file must have."""
    name = name_of_data(of_dataset, dataset)
    if recipe.recipe in QUICKSTARTS and not (file or name):
        return "made by the command"
    if file:
        return file_name(file)
    if name:
        return name if is_hub_id(name) else file_name(name)
    return f"a file with the columns {', '.join(columns)}" if columns else "none"


def name_of_data(file: str | None, dataset: str | None) -> str | None:
    """Return what names the data of a data set best. A pattern such as `train-*.parquet` says nothing."""
    return file if file and "*" not in file else dataset


def command(recipe: Recipe, runs: Sequence[dict]) -> str:
    """Return the training command: the recipe, and the keys that differ from it. Files have no paths.

    Example:
        >>> print(command(load_recipe("quickstart", {"seeds": "1, 2"}), []))
        accelerate launch -m csezoo.training.train quickstart --seeds 1 2
    """
    launch, given = "accelerate launch", set(FREE_KEYS)
    for run in runs[:1]:  # one launch trains all seeds
        processes = run["training"]["processes"]
        if processes > 1 and not run["training"]["peak_device_bytes"]:
            launch = f"ACCELERATE_USE_CPU=true {launch}"
        launch += f"{' --multi_gpu' if processes > 1 else ''} --num_processes {processes}"
        launch += f" --mixed_precision {shlex.quote(run['training']['precision'])}"
        given.add("mixed_precision")
    name = recipe.recipe if recipe.recipe in recipe_names() else "recipe.yaml"
    words = [f"{launch} -m csezoo.training.train {name}"]
    if recipe.recipe in recipe_names():
        original = load_recipe(recipe.recipe).to_dict()
        changed = {key: value for key, value in recipe.to_dict().items() if value != original.get(key, ...)}
        words += [_option(key, value) for key, value in changed.items() if key not in given]
        if recipe.recipe not in QUICKSTARTS:
            words += [] if recipe.base_model else ["--base_model MODEL"]
            words += [] if recipe.dataset or recipe.train_file or recipe.max_steps == 0 else ["--train_file FILE"]
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) > 100:
            lines.append("   ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


def _option(key: str, value: object) -> str:
    file = key.endswith("_file") and not key.endswith("dataset_file")  # that is a path in a data set of the Hub
    if isinstance(value, str) and (file or key == "eval_data" or not is_hub_id(value)):
        value = file_name(value)
    values = value if isinstance(value, list) else [value]
    if key == "teachers" and value:
        values = [file_name(str(directory)) for directory in values]
    return " ".join([f"--{key}", *(shlex.quote(as_word(each)) for each in values)])


def neighbours_table(neighbours: Sequence[dict], before: str) -> str:
    """Return the table of nearest sentences before and after training, with their cosines."""
    rows = [
        [plain(row["query"]), *(f"{row[side]['cosine']:.2f} {plain(row[side]['sentence'])}" for side in SIDES)]
        for row in neighbours
    ]
    about = f"The nearest of all test sentences, with its cosine: for the encoder {before}, and for these weights."
    return f"{about}\n\n{markdown_table(['sentence', *SIDES], *rows)}"


def cost_table(runs: Sequence[dict]) -> str:
    """Return the table of time, speed, memory and machine. Time and speed are means over the seeds."""
    trainings = [run["training"] for run in runs]
    first = trainings[0]
    minutes = statistics.mean(training["seconds"] for training in trainings) / 60
    rows = [["time", f"{minutes:.1f} minutes{' per seed' if len(runs) > 1 else ''}, including dev evaluations"]]
    if first["rows_per_second"]:
        speed = statistics.mean(training["rows_per_second"] for training in trainings)
        rows.append(["speed", f"{speed:.0f} training rows per second"])
    memory = []
    for name, key in (("process", "peak_rss_bytes"), ("GPU", "peak_device_bytes")):
        if recorded := [training[key] for training in trainings if training[key]]:  # seeds may be of two machines
            memory.append(f"{max(recorded) / 2**30:.1f} GiB ({name})")
    machine = runs[0]["machine"]
    where = f"{machine['device']}, processes: {first['processes']}, precision: {first['precision']}"
    if "threads" in machine:  # two of the zoo's runs did not record them
        where += f", threads: {machine['threads']}"
    rows += [["peak memory", ", ".join(memory)], ["machine", plain(where)], ["processor", plain(machine["processor"])]]
    return markdown_table(["", ""], *rows)
