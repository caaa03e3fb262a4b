"""Write the model card of a run or of a recipe from the recipe and the results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..evaluation.tasks.names import DEV_TASK
from ..evaluation.tasks.senteval import REPOSITORY as SENTEVAL
from ..evaluation.tasks.sts import HUB
from ..pictures.captions import PICTURES
from ..recipes import Recipe, is_hub_id
from .card_tables import (
    command,
    cost_table,
    models_table,
    neighbours_table,
    published_tables,
    results_table,
    settings_table,
)
from .escaping import plain
from .listing import MEASURED, RECIPE_ONLY, Model
from .method_texts import citations, description, limits, show_ideas, text_names, trained

UNTRAINED = f"Status: {RECIPE_ONLY}. The command below makes the weights."
UNPUBLISHED = (
    f"Status: {MEASURED}. The weights are not published. REPOSITORY is the directory that the command below makes."
)
NO_COST = "Time, memory, precision and number of processes were not recorded for this run."


def model_card(
    recipe: Recipe,
    results: list[dict],
    summary: list[dict] | None = None,
    *,
    runs: Sequence[dict] = (),
    pictures: Sequence[str] = (),
    ideas_at: str = "",
    neighbours: Sequence[dict] = (),
    published: bool = True,
) -> ModelCard:
    """Return the card of a run. Every number comes from its results or from a table of a paper.

    Args:
        recipe: the recipe of the run.
        results: the results of the weights in the repository.
        summary: mean and standard deviation over the seeds; `None` if there is one seed.
        runs: training and machine of each seed, as in results files. Without any, the card says that the cost is not
            known.
        pictures: names of the pictures beside the card, out of `PICTURES`.
        ideas_at: path from the card to the pictures of the methods' ideas, with a slash at its end.
        neighbours: the nearest sentences of some sentences before and after training, see `side_by_side`.
        published: whether the weights are beside the card, or will be on the Hub. The card says so if they are not.
    """
    results_text = [f"## Results\n\n{results_table(recipe, results, summary)}"]
    results_text += [f"![{PICTURES[name]}]({name})\n\n*{PICTURES[name]}.*" for name in PICTURES if name in pictures]
    if trained(recipe) or recipe.whitening:
        results_text.append(f"## Neighbours\n\n{neighbours_table(neighbours)}")
    results_text.append(f"## Cost\n\n{cost_table(list(runs)) if runs else NO_COST}")
    status = [] if published else [UNPUBLISHED]
    return _card(recipe, results, list(runs), "REPOSITORY", results_text, ideas_at, status)


def recipe_card(recipe: Recipe, *, ideas_at: str, changed: Sequence[Model] = ()) -> ModelCard:
    """Return the card of a recipe that has not been trained: its methods, and the numbers of the papers.

    Args:
        recipe: a recipe of the zoo.
        ideas_at: as for `model_card`.
        changed: measured runs that change settings of the recipe, such as its base model; the card links them.
    """
    tables = [f"Runs with other settings:\n\n{models_table(changed)}"] if changed else []
    results_text = "\n\n".join(["## Results", *tables, published_tables(recipe.name)])
    return _card(recipe, [], [], f"runs/{recipe.name}/best", [results_text], ideas_at, [UNTRAINED])


def _card(
    recipe: Recipe,
    results: list[dict],
    runs: list[dict],
    path: str,
    results_text: list[str],
    ideas_at: str,
    status: Sequence[str] = (),
) -> ModelCard:
    sections = [
        f"# {plain(recipe.name)}",
        *status,
        *show_ideas(text_names(recipe), ideas_at),
        description(recipe),
        "Made with csezoo, a model zoo of contrastive sentence embeddings.",
        use_section(path, obstacle=obstacle_of(recipe)),
        _training(recipe, runs),
        *results_text,
        "## Limits and biases\n\n" + "\n".join(f"* {line}" for line in limits(recipe)),
        f"## Citation\n\n```bibtex\n{citations(recipe)}\n```",
    ]
    data = _metadata(recipe, results)
    return ModelCard("\n\n".join([f"---\n{data.to_yaml()}\n---", *sections]) + "\n")


def _metadata(recipe: Recipe, results: list[dict]) -> ModelCardData:
    base_model = recipe.base_model if is_hub_id(recipe.base_model) else None
    data = ModelCardData(
        language=recipe.language,
        license=recipe.license,
        library_name="transformers",
        pipeline_tag="sentence-similarity",
        tags=[
            "sentence-transformers",
            "sentence-embeddings",
            "feature-extraction",
            "contrastive-learning",
            *recipe.method.split("+"),
        ],
        base_model=base_model,
        datasets=_datasets(recipe) or None,
        model_name=recipe.name if results else None,
        eval_results=[
            EvalResult(
                task_type="STS",
                dataset_type=result["dataset"],
                dataset_name=result["task"],
                dataset_revision=result["revision"],
                metric_type=f"cosine_{result['metric']}",
                metric_value=round(float(result["value"]), 2),
            )
            for result in results
        ]
        or None,
    )
    if base_model and trained(recipe):
        data["base_model_relation"] = "finetune"
    return data


def _datasets(recipe: Recipe) -> list[str]:
    """Return the ids of the Hub datasets that a recipe reads."""
    used = [] if recipe.train_file else [recipe.dataset]
    used += [recipe.nli_dataset] if recipe.reads_labelled_pairs and not recipe.nli_file else []
    if "stsb-sentences" in used:
        used = [HUB[DEV_TASK][0] if recipe.eval_data == "hub" else None, *used]
    if "sts-sentences" in used:
        used = [SENTEVAL if recipe.eval_data == "hub" else None, *used]
    return list(dict.fromkeys(name for name in used if is_hub_id(name) and "/" in name))


def obstacle_of(recipe: Recipe) -> str | None:
    """Return why the model of a recipe is not a plain encoder, or None if it is one."""
    fitted = {"flow_width": 1} if recipe.flow else {}
    return no_plain_form(recipe.method, {**recipe.model, **fitted})


def no_plain_form(method: str, model: dict[str, Any]) -> str | None:
    """Return why a model is not a plain encoder, from its method and configuration; None if it is one."""
    from csezoo.modeling.methods import method as classes_of  # imports torch, as `method_keys` does

    return classes_of(method)[0](**model).needs_own_code


def use_section(path: str, *, obstacle: str | None) -> str:
    """Return the section on how to load a model.

    Args:
        path: a directory or Hub id.
        obstacle: see `no_plain_form`.
    """
    trust = ", trust_remote_code=True" if obstacle else ""
    first = "The repository is a plain encoder with the modules of sentence-transformers, 3.0 or newer:"
    more = """
The code is in the repository, in six files that import torch and transformers. Without it, `AutoModel` loads the
encoder alone, whose `pooler_output` is not the embedding."""
    if obstacle:
        first = f"""Only its own code can serve this model: {obstacle}. The code is in the repository, in eight files
that import torch and transformers. sentence-transformers 5.4 or newer runs it:"""
        more = ""
    return f"""## Use

{first}

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("{path}"{trust})
embeddings = model.encode(["A cat sits on the mat.", "A cat is on a mat."], normalize_embeddings=True)
```

With transformers alone, the zoo's class returns the same vectors:

```python
from transformers import AutoModel
model = AutoModel.from_pretrained("{path}", trust_remote_code=True)
embeddings = model.encode(["A cat sits on the mat.", "A cat is on a mat."], normalize_embeddings=True)
```
{more}"""


def _training(recipe: Recipe, runs: list[dict]) -> str:
    shown = command(recipe, runs)
    fence = "`" * max(3, *(1 + len(run) for run in re.findall("`+", shown)), 3)
    return f"""## Training

{fence}bash
{shown}
{fence}

The command names files and directories without their paths. The run's `recipe.yaml` has every key.

{_forced(runs)}{settings_table(recipe)}"""


def _forced(runs: list[dict]) -> str:
    """Say which runs were resumed by force: the command does not make them again."""
    changed = [(run, run["training"].get("resumed_with_another")) for run in runs]
    lines = [
        f"Seed {run['seed']} was resumed by force with another {', '.join(names)}." for run, names in changed if names
    ]
    return "\n".join([*lines, "", ""]) if lines else ""
