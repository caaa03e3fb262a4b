"""Write the model card of a run or of a recipe from the recipe and the results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..errors import others
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
    baseline: dict[str, Any] | None = None,
    published: bool = True,
    adapter: str | None = None,
    note: str = "",
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
        neighbours: the nearest sentences of some sentences before and after training, see `side_by_side`. Without any,
            no sentences are shown: those of a user's own files are private.
        baseline: name and results of the base model, see `keep_baseline`; none if they were not recorded.
        published: whether the weights are beside the card, or will be on the Hub. The card says so if they are not.
        adapter: where the adapter is that is beside the card instead of the weights: its directory, or its Hub id.
        note: how the weights were made, if the command is not the whole story.
    """
    results_text = [f"## Results\n\n{results_table(recipe, results, summary, baseline)}"]
    results_text += [f"![{PICTURES[name]}]({name})\n\n*{PICTURES[name]}.*" for name in PICTURES if name in pictures]
    if neighbours and (trained(recipe) or recipe.whitening):
        before = baseline["name"] if baseline else "before training"
        results_text.append(f"## Neighbours\n\n{neighbours_table(neighbours, before)}")
    results_text.append(f"## Cost\n\n{cost_table(list(runs)) if runs else NO_COST}")
    if adapter:
        use = adapter_section(adapter, str(recipe.base_model))
        return _card(recipe, results, list(runs), use, results_text, ideas_at, note=note, adapter=True)
    status = [] if published else [UNPUBLISHED]
    use = use_section("REPOSITORY", obstacle=obstacle_of(recipe))
    return _card(recipe, results, list(runs), use, results_text, ideas_at, status, note=note)


def recipe_card(recipe: Recipe, *, ideas_at: str, changed: Sequence[Model] = ()) -> ModelCard:
    """Return the card of a recipe that has not been trained: its methods, and the numbers of the papers.

    Args:
        recipe: a recipe of the zoo.
        ideas_at: as for `model_card`.
        changed: measured runs that change settings of the recipe, such as its base model; the card links them.
    """
    tables = [f"Runs with other settings:\n\n{models_table(changed)}"] if changed else []
    results_text = "\n\n".join(["## Results", *tables, published_tables(recipe.name)])
    use = use_section(f"runs/{recipe.name}/best", obstacle=obstacle_of(recipe))
    return _card(recipe, [], [], use, [results_text], ideas_at, [UNTRAINED])


def _card(
    recipe: Recipe,
    results: list[dict],
    runs: list[dict],
    use: str,
    results_text: list[str],
    ideas_at: str,
    status: Sequence[str] = (),
    note: str = "",
    adapter: bool = False,
) -> ModelCard:
    sections = [
        f"# {plain(recipe.name)}",
        *status,
        *show_ideas(text_names(recipe), ideas_at),
        description(recipe),
        "Made with csezoo, a model zoo of contrastive sentence embeddings.",
        use,
        _training(recipe, runs, note),
        *results_text,
        "## Limits and biases\n\n" + "\n".join(f"* {line}" for line in limits(recipe)),
        f"## Citation\n\n```bibtex\n{citations(recipe)}\n```",
    ]
    data = _metadata(recipe, results, adapter)
    return ModelCard("\n\n".join([f"---\n{data.to_yaml()}\n---", *sections]) + "\n")


def _metadata(recipe: Recipe, results: list[dict], adapter: bool) -> ModelCardData:
    base_model = recipe.base_model if is_hub_id(recipe.base_model) else None
    data = ModelCardData(
        language=recipe.language,
        license=recipe.license,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="sentence-similarity",
        tags=[
            "sentence-transformers",
            "sentence-embeddings",
            "feature-extraction",
            "contrastive-learning",
            *recipe.method.split("+"),
            *(["lora", "peft"] if adapter else []),
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
        data["base_model_relation"] = "adapter" if adapter else "finetune"
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


def adapter_section(path: str, base: str) -> str:
    """Return the section on how to load an adapter, in three ways.

    Args:
        path: its directory or Hub id.
        base: Hub id of its base model.
    """
    return f"""## Use

It is an adapter in the format of PEFT: {base} is loaded first, and the adapter on top.

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("{base}")
model.load_adapter("{path}")
embeddings = model.encode(["A cat sits on the mat.", "A cat is on a mat."])
```

With transformers and PEFT, the encoder alone; pool its last hidden state as the base model does:

```python
from peft import PeftModel
from transformers import AutoModel
model = PeftModel.from_pretrained(AutoModel.from_pretrained("{base}"), "{path}")
```

As one complete model, which needs neither PEFT nor the base model any more and costs nothing more than it:

```bash
csezoo merge {path} --to merged
```"""


def _training(recipe: Recipe, runs: list[dict], note: str = "") -> str:
    shown = command(recipe, runs)
    fence = "`" * max(3, *(1 + len(run) for run in re.findall("`+", shown)), 3)
    note = f"{plain(note)}\n\n" if note else ""
    return f"""## Training

{fence}bash
{shown}
{fence}

The command names files and directories without their paths. The run's `recipe.yaml` has every key.

{note}{_forced(runs)}{settings_table(recipe)}"""


def _forced(runs: list[dict]) -> str:
    """Say which runs were resumed by force: the command does not make them again."""
    changed = [(run, run["training"].get("resumed_with_another")) for run in runs]
    lines = [f"Seed {run['seed']} was resumed by force with {others(names)}." for run, names in changed if names]
    return "\n".join([*lines, "", ""]) if lines else ""
