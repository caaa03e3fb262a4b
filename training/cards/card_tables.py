"""The parts of a card that are made of numbers and keys: results beside the paper's, settings, command, cost."""

from __future__ import annotations

import shlex
import statistics

from ..evaluation.report import AVERAGE, average, tests_only
from ..recipes import FREE_KEYS, Recipe, file_name, load_recipe, recipe_names
from .published import TRANSFER_AVERAGE, PublishedRow, comparable, published, same_pairs
from .tables import distance, markdown_table

PROTOCOL = "Spearman correlation (× 100) of the cosine similarity with the gold score, all pairs of a task together"
AVERAGES = (AVERAGE, TRANSFER_AVERAGE)
RAW_TEXT = (
    "The data of `mteb/` are the paper's pairs as raw text. The paper's, in SentEval's files, are lower-cased tokens, "
    "which a vocabulary that knows case cuts otherwise."
)


def results_table(recipe: Recipe, results: list[dict], summary: list[dict] | None) -> str:
    """What was measured, and where a paper reports the same on the same pairs, the paper's numbers and the distance.

    Args:
        recipe: the run's.
        results: of these very weights.
        summary: mean and standard deviation over the run's seeds; without it there was one.
    """
    if not results:
        return "Not evaluated."
    pairs, seeds = same_pairs(results), {entry["task"]: entry for entry in summary or []}
    beside = [row for row in comparable(recipe.recipe, recipe.method, recipe.base_model) if row.scores.keys() & pairs]
    entries = [(result["task"], result["dataset"], str(result["rows"]), result["value"]) for result in results]
    tests = tests_only(results)
    if len(tests) > 1:
        entries.append((AVERAGE, "", "", average(tests)))
    header = ["task", "data", "pairs", *(["seeds", "these weights"] if seeds else ["Spearman"])]
    if beside:
        header += ["paper", "distance in sd"] if seeds else ["paper"]
    rows = []
    for task, dataset, count, own in entries:
        cells = [f"{own:.2f}"]
        if seeds:
            cells.insert(0, f"{seeds[task]['mean']:.2f} ± {seeds[task]['sd']:.2f}")
        if beside:
            cells += _paper_cells(task, beside[0], pairs, seeds)
        if task == AVERAGE:
            task, cells = f"**{task}**", [cell and f"**{cell}**" for cell in cells]
        rows.append([task, dataset, count, *cells])
    how = f": mean ± standard deviation over {len(recipe.seeds)} seeds, and these weights' own" if seeds else ""
    return "\n\n".join([f"{PROTOCOL}{how}.", markdown_table(header, *rows), *_paper_lines(recipe, beside, results)])


def _paper_cells(task: str, paper: PublishedRow, pairs: set[str], seeds: dict[str, dict]) -> list[str]:
    known = task in paper.scores and task in pairs
    cells = [paper.shown(task) if known else ""]
    if seeds:
        far = distance(seeds[task]["mean"], seeds[task]["sd"], paper.scores[task]) if known else None
        cells.append("" if far is None else f"{far:+.1f}")
    return cells


def _paper_lines(recipe: Recipe, beside: list[PublishedRow], results: list[dict]) -> list[str]:
    """Where the numbers beside ours are from, or why there are none although a paper has some."""
    if beside:
        raw = any(result["dataset"].startswith("mteb/") for result in results)
        return [f"Source of the paper's numbers: {_cited(beside[0])}.", *([RAW_TEXT] if raw else [])]
    if recipe.recipe and published(recipe.recipe):
        return [f"The paper's numbers for `{recipe.recipe}` are of another base model, method or data: not shown."]
    return []


def published_tables(recipe: str) -> str:
    """All rows of the papers for a recipe."""
    rows = published(recipe)
    if not rows:
        return "No paper reports this setting on the STS or the transfer tasks."
    parts = ["The papers report:"]
    for row in rows:
        tasks = [f"**{task}**" if task in AVERAGES else task for task in row.scores]
        parts += [markdown_table(tasks, [row.shown(task) for task in row.scores]), f"Source: {_cited(row)}."]
    return "\n\n".join(parts)


def _cited(row: PublishedRow) -> str:
    return f"{row.source} ({row.note})" if row.note else row.source


def settings_table(recipe: Recipe) -> str:
    """What the training was told, the method's keys and its stage on labelled pairs among it."""
    rows: dict[str, object] = {
        "data": _source(recipe.train_file, recipe.dataset_file or recipe.dataset, recipe.text_columns),
        "batch size": recipe.batch_size,
        "learning rate": f"{recipe.learning_rate:g}",
        "length": f"{recipe.max_length} word pieces",
        "epochs" if recipe.max_steps is None else "updates": (
            f"{recipe.epochs:g}" if recipe.max_steps is None else recipe.max_steps
        ),
        "seeds": ", ".join(map(str, recipe.seeds)),
    }
    rows |= {key: value for key, value in recipe.model.items() if key != "prompts"}
    prompts = enumerate(recipe.model.get("prompts") or [], 1)
    rows |= {f"prompt of view {number}": f"`{text}`" for number, text in prompts}
    if recipe.nli_file or recipe.nli_dataset:
        rows["labelled data"] = _source(recipe.nli_file, recipe.nli_dataset_file or recipe.nli_dataset)
        rows["stage on labelled data"] = f"{recipe.nli_steps} updates" if recipe.nli_steps else recipe.nli_epochs
        rows |= {"nli_batch_size": recipe.nli_batch_size, "nli_learning_rate": recipe.nli_learning_rate}
    return markdown_table(["", ""], *([key, str(value)] for key, value in rows.items()))


def _source(file: str | None, dataset: str | None, columns: list[str] | None = None) -> str:
    """A file by its name, else the dataset, else what a file that has to be given must hold."""
    needed = f"a file with the columns {', '.join(columns)}" if columns else "none"
    return file_name(file) if file else dataset or needed


def command(recipe: Recipe, runs: list[dict]) -> str:
    """The command that trains it: its recipe, and the keys that differ from the recipe's own. Files go by their names.

    Args:
        runs: what results files say of each seed; precision and processes are theirs.

    Example:
        >>> print(command(load_recipe("quickstart", {"seeds": "1, 2"}), []))
        accelerate launch -m csezoo.training.train quickstart --seeds 1 2
    """
    launch = "accelerate launch"
    for run in runs[:1]:  # all seeds are of one launch
        if run["training"]["processes"] > 1:
            launch += f" --multi_gpu --num_processes {run['training']['processes']}"
        if run["training"]["precision"] != "no" and recipe.mixed_precision is None:
            launch += f" --mixed_precision {run['training']['precision']}"
    words = [f"{launch} -m csezoo.training.train {recipe.recipe or 'recipe.yaml'}"]
    if recipe.recipe in recipe_names():
        own = load_recipe(recipe.recipe).to_dict()
        changed = {key: value for key, value in recipe.to_dict().items() if value != own.get(key, ...)}
        words += [_option(key, value) for key, value in changed.items() if key not in FREE_KEYS]
        if recipe.text_columns and not (recipe.dataset or recipe.train_file):
            words.append("--train_file FILE")
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) > 100:
            lines.append("   ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


def _option(key: str, value: object) -> str:
    if isinstance(value, str) and (key.endswith("_file") or key == "eval_data" or value[:1] in ("~", ".", "/")):
        value = file_name(value)
    values = value if isinstance(value, list) else [value]
    return " ".join([f"--{key}", *map(_word, values)])


def _word(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def cost_table(runs: list[dict]) -> str:
    """Time, speed, memory and machine, means over the seeds.

    Args:
        runs: what results files say of each seed, one or more.
    """
    made = [run["training"] for run in runs]
    first = made[0]
    minutes = statistics.mean(training["seconds"] for training in made) / 60
    rows = [["time", f"{minutes:.1f} minutes{' a seed' if len(made) > 1 else ''}, with dev evaluations"]]
    if first["rows_per_second"]:
        speed = statistics.mean(training["rows_per_second"] for training in made)
        rows.append(["speed", f"{speed:.0f} training rows a second"])
    held = []
    for name, key in (("process", "peak_rss_bytes"), ("GPU", "peak_device_bytes")):
        if first[key]:
            held.append(f"{max(training[key] for training in made) / 2**30:.1f} GiB ({name})")
    where = f"{runs[0]['machine']['device']}, processes: {first['processes']}, precision: {first['precision']}"
    return markdown_table(["", ""], *rows, ["peak memory", ", ".join(held)], ["machine", where])
