"""The model card of a run or of a recipe, generated from the recipe and the results."""

from __future__ import annotations

from collections.abc import Sequence

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..evaluation.tasks.sts import DEV_TASK, HUB
from ..pictures.captions import PICTURES
from ..recipes import Recipe
from .card_tables import command, cost_table, published_tables, results_table, settings_table
from .method_texts import citations, description, ideas, limits, trained

UNTRAINED = "Nobody has trained this recipe yet: there are no weights to load and no results of this zoo's."
NO_COST = "Time, memory, precision and processes of this run were not recorded."


def model_card(
    recipe: Recipe,
    results: list[dict],
    summary: list[dict] | None = None,
    *,
    runs: Sequence[dict] = (),
    pictures: Sequence[str] = (),
    ideas_at: str = "",
) -> ModelCard:
    """Metadata and text of a repository; every number comes from its results or a paper's table.

    Args:
        recipe: the run's.
        results: of these very weights, for the metadata and, alone, for the table.
        summary: mean and standard deviation over the run's seeds, for the table.
        runs: what results files say of each seed's training and machine; without any their cost is not known.
        pictures: the names of those that lie beside the card, of `PICTURES`.
        ideas_at: the directory of the pictures of the methods' ideas, seen from the card, with a slash at its end.
    """
    results_text = [f"## Results\n\n{results_table(recipe, results, summary)}"]
    results_text += [f"![{PICTURES[name]}]({name})\n\n*{PICTURES[name]}.*" for name in PICTURES if name in pictures]
    results_text.append(f"## Cost\n\n{cost_table(list(runs)) if runs else NO_COST}")
    return _card(recipe, results, list(runs), "REPOSITORY", results_text, ideas_at)


def recipe_card(recipe: Recipe, *, ideas_at: str) -> ModelCard:
    """The card of a recipe that nobody has trained: what it would do, and what the paper reports.

    Args:
        recipe: one of the zoo's.
        ideas_at: as of `model_card`.
    """
    results_text = f"## Results\n\n{UNTRAINED}\n\n{published_tables(recipe.name)}"
    return _card(recipe, [], [], f"runs/{recipe.name}/best", [results_text], ideas_at)


def _card(
    recipe: Recipe, results: list[dict], runs: list[dict], path: str, results_text: list[str], ideas_at: str
) -> ModelCard:
    sections = [
        f"# {recipe.name}",
        *(f"![The idea of {picture.stem}]({ideas_at}{picture.name})" for picture in ideas(recipe)),
        description(recipe),
        "Made with csezoo, a model zoo of contrastive sentence embeddings.",
        _use(path),
        _training(recipe, runs),
        *results_text,
        "## Limits and biases\n\n" + "\n".join(f"* {line}" for line in limits(recipe)),
        f"## Citation\n\n```bibtex\n{citations(recipe)}\n```",
    ]
    data = _metadata(recipe, results)
    return ModelCard("\n\n".join([f"---\n{data.to_yaml()}\n---", *sections]) + "\n")


def _metadata(recipe: Recipe, results: list[dict]) -> ModelCardData:
    base_model = _hub_id(recipe.base_model)
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
    """The ids of the Hub's datasets that a recipe reads."""
    used = [] if recipe.train_file else [recipe.dataset]
    used += [] if recipe.nli_file else [recipe.nli_dataset]
    if "stsb-sentences" in used:
        used = [HUB[DEV_TASK][0] if recipe.eval_data == "hub" else None, *used]
    return list(dict.fromkeys(name for name in used if name and "/" in name))


def _hub_id(base_model: str | None) -> str | None:
    """A directory of the author's machine is nobody else's base model."""
    return None if base_model is None or base_model[0] in "./~" else base_model


def _use(path: str) -> str:
    return f"""## Use

```python
from transformers import AutoModel
model = AutoModel.from_pretrained("{path}", trust_remote_code=True)
embeddings = model.encode(["A cat sits on the mat.", "A cat is on a mat."], normalize_embeddings=True)
```

`AutoTokenizer` and `model(**batch).pooler_output` give the same vectors, and so does sentence-transformers:

```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("{path}", trust_remote_code=True)
embeddings = model.encode(["A cat sits on the mat.", "A cat is on a mat."], normalize_embeddings=True)
```"""


def _training(recipe: Recipe, runs: list[dict]) -> str:
    return f"""## Training

```bash
{command(recipe, runs)}
```

Files and directories stand there by their names; `recipe.yaml` of the run has every key resolved.

{settings_table(recipe)}"""
