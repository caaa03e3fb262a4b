"""The model card of a run, generated from its recipe and its results."""

from __future__ import annotations

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from .evaluation import AVERAGE, average, tests_only
from .recipes import Recipe

DESCRIPTIONS = {
    "simcse": (
        "SimCSE (Gao et al., EMNLP 2021) pulls two views of a sentence together and pushes all other sentences of the "
        "batch away. Without labels the two views differ by dropout alone; with NLI data the positive is the entailed "
        "hypothesis and the contradicted one is a hard negative."
    ),
    "prdsimcse": (
        "PrdSimCSE (Wang and Lv, Applied Sciences 2024) makes the positive of a sentence by putting filler words "
        "before it (the longer the sentence, the more of them) and a hard negative by a statement that what follows "
        "is contradictory. Sentences are embedded without either."
    ),
    "sgopt": (
        "SG-OPT (Kim et al., ACL 2021) clones the pre-trained encoder, freezes the clone, and draws each sentence's "
        "[CLS] vector to the pooled hidden layers of the clone for the same sentence, away from those of other "
        "sentences. The tuned encoder alone is kept."
    ),
    "diffcse": (
        "DiffCSE (Chuang et al., NAACL 2022) adds a second task to SimCSE: a frozen masked language model edits the "
        "sentence, and a discriminator has to tell which words were replaced from the edited sentence and the vector "
        "of the original one. The vector becomes sensitive to such edits while it stays insensitive to dropout. "
        "Editor, discriminator and projection serve training alone."
    ),
    "l2pcsr": (
        "L2P-CSR (Zhou et al., 2023) learns how to perturb the two views of a sentence: in every batch a few steps "
        "raise the contrastive loss over which tokens and features are weakened in the first layers, then the encoder "
        "learns to tell the sentences apart all the same. Nothing is weakened when the model is used."
    ),
    "diffaug": (
        "DiffAug (Wang & Lu, EMNLP 2022) tells the two views of a sentence apart by learned key/value prefixes in "
        "every layer. They are tuned first, on entailed and contradicted sentence pairs with the language model "
        "frozen; then prefixes and language model are trained together by contrastive learning. Both prefixes stay at "
        "test time."
    ),
}
CITATIONS = {
    "simcse": """@inproceedings{gao2021simcse,
  title = {{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
  author = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
  booktitle = {EMNLP},
  year = {2021}
}""",
    "prdsimcse": """@article{wang2024prefix,
  title = {Prefix Data Augmentation for Contrastive Learning of Unsupervised Sentence Embedding},
  author = {Wang, Chunchun and Lv, Shu},
  journal = {Applied Sciences},
  volume = {14},
  number = {7},
  year = {2024}
}""",
    "sgopt": """@inproceedings{kim2021selfguided,
  title = {Self-Guided Contrastive Learning for {BERT} Sentence Representations},
  author = {Kim, Taeuk and Yoo, Kang Min and Lee, Sang-goo},
  booktitle = {ACL},
  year = {2021}
}""",
    "diffcse": """@inproceedings{chuang2022diffcse,
  title = {{DiffCSE}: Difference-based Contrastive Learning for Sentence Embeddings},
  author = {Chuang, Yung-Sung and Dangovski, Rumen and Luo, Hongyin and Zhang, Yang and Chang, Shiyu and
    Solja{\\v{c}}i{\\'c}, Marin and Li, Shang-Wen and Yih, Wen-tau and Kim, Yoon and Glass, James},
  booktitle = {NAACL},
  year = {2022}
}""",
    "l2pcsr": """@article{zhou2023learning,
  title = {Learning to Perturb for Contrastive Learning of Unsupervised Sentence Representations},
  author = {Zhou, Kun and Zhou, Yuanhang and Zhao, Wayne Xin and Wen, Ji-Rong},
  journal = {IEEE/ACM Transactions on Audio, Speech, and Language Processing},
  volume = {31},
  year = {2023}
}""",
    "diffaug": """@inproceedings{wang2022diffaug,
  title = {Differentiable Data Augmentation for Contrastive Sentence Representation Learning},
  author = {Wang, Tianduo and Lu, Wei},
  booktitle = {EMNLP},
  year = {2022}
}""",
}


def model_card(recipe: Recipe, results: list[dict], summary: list[dict] | None = None) -> ModelCard:
    """Metadata and text of a repository; every number comes from its results.

    Args:
        recipe: the run's.
        results: of these very weights, for the metadata and, alone, for the table.
        summary: mean and standard deviation over the run's seeds, for the table.
    """
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
        base_model=_hub_id(recipe.base_model),
        datasets=None if recipe.train_file else recipe.dataset,
        model_name=recipe.name,
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
    if not results:
        data.model_name = None
    table = _seeds_table(recipe, results, summary) if summary else _table(results)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_text(recipe, table)}")


def _joined(texts: dict[str, str], recipe: Recipe) -> str:
    """What there is to say of each of a run's methods."""
    return "\n\n".join(texts[method] for method in recipe.method.split("+"))


def _hub_id(base_model: str | None) -> str | None:
    """A directory of the author's machine is nobody else's base model."""
    return None if base_model is None or base_model[0] in "./~" else base_model


def _text(recipe: Recipe, table: str) -> str:
    return f"""# {recipe.name}

{_joined(DESCRIPTIONS, recipe)}

Trained with csezoo, a model zoo of contrastive sentence embeddings.

## Use

```python
from transformers import AutoModel
model = AutoModel.from_pretrained("REPOSITORY", trust_remote_code=True)
embeddings = model.encode(["A cat sits on the mat.", "A cat is on a mat."], normalize_embeddings=True)
```

`AutoTokenizer` and `model(**batch).pooler_output` give the same vectors, and so does
`SentenceTransformer("REPOSITORY", trust_remote_code=True).encode(...)`.

## Training

| | |
|---|---|
| data | {_source(recipe.train_file, recipe.dataset_file or recipe.dataset)} |
| batch size | {recipe.batch_size} |
| learning rate | {recipe.learning_rate:g} |
| length | {recipe.max_length} word pieces |
| {"updates" if recipe.max_steps else "epochs"} | {recipe.max_steps or f"{recipe.epochs:g}"} |
| seeds | {", ".join(map(str, recipe.seeds))} |
{_method_rows(recipe)}

The resolved recipe is in `recipe.yaml` of the run.

## Results

{table}

## Limits

Embeddings reflect the sentences they were trained on, their biases included. They were trained on single sentences;
longer texts and other languages than those above were not tested.

## Citation

```bibtex
{_joined(CITATIONS, recipe)}
```
"""


def _source(file: str | None, dataset: str | None) -> str:
    """A file by its name: its directory is nobody else's."""
    return file.rsplit("/", 1)[-1] if file else dataset or "none"


def _method_rows(recipe: Recipe) -> str:
    """What the method was told, key by key, and its stage on labelled pairs."""
    rows = {key: value for key, value in recipe.model.items() if key != "prompts"}
    rows |= {
        f"prompt of view {number}": f"`{text}`" for number, text in enumerate(recipe.model.get("prompts") or [], 1)
    }
    if recipe.nli_file or recipe.nli_dataset:
        rows["labelled data"] = _source(recipe.nli_file, recipe.nli_dataset_file or recipe.nli_dataset)
        rows["stage on labelled data"] = f"{recipe.nli_steps} updates" if recipe.nli_steps else recipe.nli_epochs
        rows |= {key: getattr(recipe, key) for key in ("nli_batch_size", "nli_learning_rate")}
    return "\n".join(f"| {key} | {value} |" for key, value in rows.items())


PROTOCOL = "Spearman correlation (× 100) of the cosine similarity with the gold score, all pairs of a task together"


def _seeds_table(recipe: Recipe, results: list[dict], summary: list[dict]) -> str:
    rows = [
        f"| {seeds['task']} | {own['dataset']} | {own['rows']} "
        f"| {seeds['mean']:.2f} ± {seeds['sd']:.2f} | {own['value']:.2f} |"
        for seeds, own in zip(summary, results, strict=False)  # the average has no results of its own
    ]
    *_, total = summary
    if total["task"] == AVERAGE:
        own = average(results)
        rows.append(f"| **{AVERAGE}** | | | **{total['mean']:.2f} ± {total['sd']:.2f}** | **{own:.2f}** |")
    header = f"{PROTOCOL}: mean ± standard deviation over {len(recipe.seeds)} seeds, and these weights' own.\n"
    return "\n".join([header, "| task | data | pairs | seeds | these weights |", "|---|---|---|---|---|", *rows])


def _table(results: list[dict]) -> str:
    if not results:
        return "Not evaluated."
    header = f"{PROTOCOL}.\n"
    rows = [f"| {r['task']} | {r['dataset']} | {r['rows']} | {r['value']:.2f} |" for r in results]
    tests = tests_only(results)
    if len(tests) > 1:
        rows.append(f"| **{AVERAGE}** | | | **{average(tests):.2f}** |")
    return "\n".join([header, "| task | data | pairs | Spearman |", "|---|---|---|---|", *rows])
