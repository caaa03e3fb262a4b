"""Write the model card of a run or of a recipe from the recipe and the results."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..errors import others
from ..evaluation.tasks.names import DEV_TASK
from ..evaluation.tasks.senteval import REPOSITORY as SENTEVAL
from ..evaluation.tasks.sts import HUB
from ..pictures.captions import PICTURES
from ..recipes import Recipe, is_hub_id
from ..tables import plain
from .card_tables import (
    command,
    cost_table,
    models_table,
    neighbours_table,
    published_tables,
    results_table,
    settings_table,
)
from .listing import MEASURED, RECIPE_ONLY, Model
from .method_texts import citations, description, ideas, limits, text_names, trained

# The text of all cards: of runs, adapters, recipes, and checkpoints that others released.
TEMPLATES = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
TEMPLATES.filters["quote"] = shlex.quote
TEMPLATE = TEMPLATES.from_string((Path(__file__).parent / "card.jinja").read_text(encoding="utf-8"))
UNTRAINED = f"{RECIPE_ONLY}. The command below makes the weights."
INITIAL = "No checkpoint was better on dev than the model before training, so it has those weights."
UNPUBLISHED = (
    f"{MEASURED}. The weights are not published. REPOSITORY is `best/` of the run that the command below makes."
)
# From a card in the directory of the cards to the pictures that explain the methods' ideas.
IDEAS_AT = "../ideas/"
NO_COST = "Time, memory, precision and number of processes were not recorded for this run."
TAGS = ["sentence-transformers", "sentence-embeddings", "feature-extraction"]


def fill_card(metadata: ModelCardData, **parts: Any) -> ModelCard:
    """Return a card from the template; a part that is missing is left out."""
    return ModelCard(TEMPLATE.render(metadata=metadata.to_yaml(), **parts))


def model_card(
    recipe: Recipe,
    report: dict[str, Any],
    *,
    pictures: Sequence[str] = (),
    published: bool = True,
    adapter: str | None = None,
) -> ModelCard:
    """Return the card of a run. Every number comes from its results or from a table of a paper.

    Args:
        recipe: the recipe of the run.
        report: what its `results.json` has; empty before it is finished. Of several seeds, the best one's results are
            those of the weights. Without training and machine, the card says that the cost is not known.
        pictures: names of the pictures beside the card, out of `PICTURES`.
        published: whether the weights are beside the card, or will be on the Hub. The card says so if they are not.
            The pictures of the methods' ideas are beside the card then, and otherwise in `IDEAS_AT`.
        adapter: where the adapter is that is beside the card instead of the weights: its directory, or its Hub id.
    """
    results, summary = report.get("results", []), report.get("summary")
    if summary:
        results = [result for result in results if result["seed"] == report["best_seed"]]
    runs = report.get("runs", [report] if "training" in report else [])
    baseline = report.get("baseline")
    chosen = [run["training"] for run in runs if run.get("seed") == report.get("best_seed", run.get("seed"))]
    initial = any(run["updates"] and run.get("soup", [run["best_step"]]) == [0] for run in chosen)
    status = [*([INITIAL] if initial else []), *([UNPUBLISHED] if not (published or adapter) else [])]
    near = report.get("neighbours") if trained(recipe) or recipe.whitening else None
    return fill_card(
        _metadata(recipe, results, bool(adapter)),
        status=" ".join(status),
        **_of_recipe(recipe, runs),
        limits=limits(recipe, learned=not initial),
        ideas_at="" if published else IDEAS_AT,
        path="REPOSITORY",
        adapter=adapter,
        base=recipe.base_model,
        revision=f', revision="{recipe.base_revision}"' if recipe.base_revision else "",
        note=plain(report.get("note", "")),
        results=results_table(recipe, results, summary, baseline),
        shown=[(name, caption) for name, caption in PICTURES.items() if name in pictures],
        # Without any, no sentences are shown: those of a user's own files are private.
        neighbours=near and neighbours_table(near, baseline["name"] if baseline else "before training"),
        cost=cost_table(runs) if runs else NO_COST,
    )


def recipe_card(recipe: Recipe, *, changed: Sequence[Model] = ()) -> ModelCard:
    """Return the card of a recipe that has not been trained: its methods, and the numbers of the papers."""
    tables = [f"Runs with other settings:\n\n{models_table(changed)}"] if changed else []
    return fill_card(
        _metadata(recipe, [], False),
        status=UNTRAINED,
        **_of_recipe(recipe, []),
        limits=limits(recipe),
        ideas_at=IDEAS_AT,
        path=f"runs/{recipe.name}/best",
        results="\n\n".join([*tables, published_tables(recipe.name)]),
    )


def _of_recipe(recipe: Recipe, runs: Sequence[dict]) -> dict[str, Any]:
    """Return the parts of a card that depend on the recipe, and on how its runs were launched."""
    shown = command(recipe, runs)
    changed = [(run, run["training"].get("resumed_with_another")) for run in runs]
    return {
        "title": plain(recipe.name),
        "pictures": ideas(text_names(recipe)),
        "description": description(recipe),
        "origin": "Made with csezoo, a model zoo of contrastive sentence embeddings.",
        "obstacle": no_plain_form(recipe.method, {**recipe.model, **({"flow_width": 1} if recipe.flow else {})}),
        "command": shown,
        "fence": "`" * max([3, *(1 + len(run) for run in re.findall("`+", shown))]),
        # The command does not make these runs again.
        "forced": [{"seed": run["seed"], "changed": others(names)} for run, names in changed if names],
        "settings": settings_table(recipe),
        "citations": citations(recipe),
    }


def _metadata(recipe: Recipe, results: list[dict], adapter: bool) -> ModelCardData:
    base_model = recipe.base_model if is_hub_id(recipe.base_model) else None
    scores = [
        EvalResult(
            task_type="STS",
            dataset_type=result["dataset"],
            dataset_name=result["task"],
            dataset_revision=result["revision"],
            dataset_split=_split(result),  # without it, dev and test of STS-B would be one data set
            metric_type=f"cosine_{result['metric']}",
            metric_value=round(float(result["value"]), 2),
        )
        for result in results
    ]
    methods = ["contrastive-learning", *recipe.method.split("+")] if trained(recipe) else []
    data = ModelCardData(
        language=recipe.language,
        license=recipe.license,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="sentence-similarity",
        tags=[*TAGS, *methods, *(["lora", "peft"] if adapter else [])],
        base_model=base_model,
        datasets=list(_datasets(recipe)) or None,
        model_name=recipe.name if results else None,
        eval_results=scores or None,
    )
    if base_model and trained(recipe):
        data["base_model_relation"] = "adapter" if adapter else "finetune"
    return data


def _split(result: dict) -> str | None:
    """Return the split of a data set of the Hub that a result was measured on."""
    dataset, _, split = HUB.get(result["task"], (None, None, None))
    return split if result["dataset"] == dataset else None


def _datasets(recipe: Recipe) -> Iterable[str]:
    """Return the ids of the Hub datasets that a recipe reads."""
    used = [] if recipe.train_file else [recipe.dataset]
    used += [recipe.nli_dataset] if recipe.reads_labelled_pairs and not recipe.nli_file else []
    if recipe.eval_data == "hub":
        read_for = {"stsb-sentences": HUB[DEV_TASK][0], "sts-sentences": SENTEVAL}
        used = [*(read_for[name] for name in used if name in read_for), *used]
    return dict.fromkeys(name for name in used if name and is_hub_id(name) and "/" in name)


def no_plain_form(method: str, model: dict[str, Any]) -> str | None:
    """Return why a model is not a plain encoder, from its method and configuration; None if it is one."""
    from csezoo.modeling.methods import method as classes_of  # imports torch, as `method_keys` does

    return classes_of(method)[0](**model).reason_for_own_code
