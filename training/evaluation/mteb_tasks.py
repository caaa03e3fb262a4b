"""Run MTEB's tasks on any model that csezoo loads, and write our STS results as MTEB's results repository has them.

mteb needs Python 3.11 and is imported only when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csezoo.modeling.serving.encoding_csezoo import SIMILARITIES

from ..errors import UserError, quoted, refuse_missing
from .encoders import load_encoder
from .sentence_vectors import Encode, as_role, similarity_of

# Our tasks that have the pairs of MTEB's. Its SICK-R is train, trial and test together, ours the test pairs only.
SAME_PAIRS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark")


def run_mteb(
    model: str, tasks: Sequence[str], to: str, *, data: str | None = None, name: str | None = None, **options: Any
) -> list[dict]:
    """Run MTEB's own tasks on a model, and write the folder that MTEB's results repository takes.

    Args:
        model: directory or Hub id, of any kind that `load_encoder` reads.
        to: the folder; a task that is already in it is not run again.
        data: a directory with each data set at its path (`DIR/mteb/sts12-sts/test.csv`); by default the Hub.
        name: of the model in the results, `ORG/NAME`; by default the Hub id, or `local/` and the directory's name.
        options: of `load_encoder`.

    Returns:
        For each task its name, main metric and value, times 100.

    Raises:
        UserError: mteb is not installed, a task does not exist, or its data is missing.
    """
    refuse_missing("MTEB (and Python 3.11 or newer)", "mteb")
    import mteb
    from mteb.cache import ResultCache

    try:
        chosen = [mteb.get_task(task) for task in tasks]
    except KeyError as error:
        raise UserError(f"tasks: {quoted(error.args[0])}") from error
    for task in chosen if data else []:
        here = Path(data or "", task.metadata.dataset["path"])
        if not here.is_dir():
            raise UserError(f"data: {here} does not exist; MTEB's task {task.metadata.name} reads it")
        # MTEB keeps the revision of the Hub's data set in its results, so the files must be those.
        task.metadata = task.metadata.model_copy(update={"dataset": {**task.metadata.dataset, "path": str(here)}})
    encode, receipt = load_encoder(model, **options)
    meta = model_meta(model, receipt, encode, name)
    found = mteb.evaluate(meta.load_model(), chosen, cache=ResultCache(to), show_progress_bar=False)
    return [
        {"task": one.task_name, "metric": one.task.metadata.main_score, "value": 100 * one.get_score()}
        for one in found.task_results
    ]


def model_meta(model: str, receipt: dict, encode: Encode, name: str | None) -> Any:
    """Return MTEB's description of a model, whose loader returns an encoder for MTEB's tasks."""
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ScoringFunction

    class ZooEncoder(AbsEncoder):
        def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> np.ndarray:
            of_role = as_role(encode, prompt_type.value) if prompt_type else encode
            return of_role([text for batch in inputs for text in batch["text"]])

        def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
            left, right = (torch.atleast_2d(torch.as_tensor(each)).float() for each in (embeddings1, embeddings2))
            return SIMILARITIES[similarity_of(encode)](left, right)

        def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
            pairs = zip(embeddings1, embeddings2, strict=True)
            return torch.cat([self.similarity(first, second)[0] for first, second in pairs])

    known = {
        "name": _name(model, name),
        "revision": revision_of(receipt),
        "loader": lambda *_, **__: ZooEncoder(),
        "framework": ["PyTorch", "Transformers"],
        "similarity_fn_name": ScoringFunction(similarity_of(encode)),
        "embed_dim": encode(["a"]).shape[1],
        "languages": ["eng-Latn"],
        "open_weights": True,
    }
    return ModelMeta.create_empty(known)


def _name(model: str, name: str | None) -> str:
    directory = Path(model)
    known = name or (f"local/{directory.absolute().name}" if directory.is_dir() else model)
    if "/" not in known:
        raise UserError(f"name: {known!r} must be ORG/NAME")
    return known


def revision_of(receipt: dict) -> str:
    """Return the revision of a model for MTEB. A task that has a result of this revision is not run again.

    It names all that changes the vectors: the model, the pooling of a plain encoder, and another type than float32.

    Example:
        >>> receipt = {"model_revision": "abc", "kind": "transformers", "pooling": "mean", "dtype": "bfloat16"}
        >>> revision_of(receipt)
        'abc-mean-bfloat16'
    """
    if (revision := receipt["model_revision"]) is None:
        checksum = receipt["model_sha256"]
        revision = f"sha256-{checksum[:16]}" if checksum else receipt["kind"]  # a bag of words has no file
    parts = [revision]
    parts += [receipt["pooling"]] if receipt["kind"] == "transformers" else []
    parts += [receipt["dtype"]] if receipt["dtype"] != "float32" else []
    return "-".join(parts)


def refuse_format(data: str, model: str, name: str | None) -> None:
    """Refuse, before the evaluation, what `write_results` cannot write."""
    refuse_missing("MTEB (and Python 3.11 or newer)", "mteb")
    _name(model, name)
    if data != "hub":
        raise UserError(
            f"format: the texts of {data} are tokenised, MTEB's are not. Use --data hub, or let MTEB read its own "
            "files: csezoo mteb"
        )


def write_results(
    results: Sequence[dict], to: str, model: str, receipt: dict, encode: Encode, name: str | None
) -> Path:
    """Write STS results as the folder that MTEB's results repository takes.

    Args:
        results: of `evaluate`, on MTEB's own data sets; the tasks of `SAME_PAIRS` are written.
        model, receipt, encode, name: as for `model_meta`.

    Returns:
        The folder of this model and revision.
    """
    chosen = [result for result in results if result["task"] in SAME_PAIRS and result.get("suite") != "pairs"]
    if not chosen:
        raise UserError(f"format: MTEB has none of these tasks with the same pairs; it has {', '.join(SAME_PAIRS)}")

    import mteb
    from mteb.cache import ResultCache
    from mteb.results import TaskResult

    cache, meta = ResultCache(to), model_meta(model, receipt, encode, name)
    for result in chosen:
        score = result["value"] / 100
        scores = {"test": {"default": {"cosine_spearman": score, "main_score": score}}}
        task = TaskResult.from_task_results(mteb.get_task(result["task"]), scores, evaluation_time=0.0)
        cache.save_to_cache(task, meta)
    return cache.get_task_result_path(chosen[0]["task"], meta).parent
