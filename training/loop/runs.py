"""Runs: train every seed of a recipe, evaluate the best models and aggregate the seeds."""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import yaml
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin
from transformers.utils import logging as transformers_logging

from ..environment import device, versions
from ..errors import Terminated, UserError, one_line
from ..evaluation.encoders import load_encoder
from ..evaluation.report import AVERAGE, average, format_table, tests_only
from ..evaluation.suites import encode_once, score
from ..evaluation.tasks.sts import DEV_TASK, STS_TASKS, PairTask, load_pairs_file, load_task
from ..files import locked, recover_directory, replace_directory, report_full_disk, write_json
from ..pictures.captions import PICTURES
from ..pictures.vectors import draw_similarities
from ..publishing.repository import save_card
from ..recipes import FREE_KEYS, Recipe, dump_recipe
from .distributed.fsdp import fsdp_plugin
from .distributed.launch import check_launch
from .distributed.zero import deepspeed_plugin
from .precision import choose_precision, precision_of
from .training_loop import train
from .whitening import whiten

logger = logging.getLogger(__name__)


def run_recipe(recipe: Recipe, *, show: bool = True) -> dict:
    """Train every seed of a recipe, evaluate the best models, aggregate the seeds and print a summary.

    Args:
        show: whether to print the summary.

    Returns:
        The content of the run's `results.json`.
    """
    output = Path(recipe.output_dir or f"runs/{recipe.name}")
    accelerator = make_accelerator(recipe, output)
    with locked(output) if accelerator.is_main_process else nullcontext(), report_full_disk(output):
        results = _run_seeds(recipe, output, accelerator)
    if show and accelerator.is_main_process:
        print(summary(results, output), flush=True)
    return results


def _run_seeds(recipe: Recipe, output: Path, accelerator: Accelerator) -> dict:
    dev, tests = load_evaluation(recipe)
    if accelerator.is_main_process:
        claim(output, recipe)
    accelerator.wait_for_everyone()
    start_tracker(accelerator, recipe)
    runs = []
    for seed in recipe.seeds:
        run = output / f"seed-{seed}" if len(recipe.seeds) > 1 else output
        runs.append(run_seed(recipe, seed, run, accelerator, dev, tests))
    results = runs[0] if len(runs) == 1 else aggregate(recipe, runs, output, accelerator)
    accelerator.end_training()
    return results


def make_accelerator(recipe: Recipe, output: Path) -> Accelerator:
    """Set up the processes, precision, logging and tracker of a run.

    Raises:
        UserError: the recipe's tracker or precision does not work here, or too few processes were started.
    """
    tracker = None if recipe.report_to == "none" else recipe.report_to
    # The heads of one stage have no gradients in the other. Without a contrastive loss, a projection may have none.
    unused = recipe.model.get("nli_classes", 0) > 0 or recipe.model.get("contrastive_weight", 1) == 0
    data_parallel = DistributedDataParallelKwargs(find_unused_parameters=unused)
    precision = choose_precision(recipe.mixed_precision)
    try:
        accelerator = Accelerator(
            mixed_precision=precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=recipe.gradient_accumulation_steps),
            log_with=tracker,
            project_dir=str(output),
            kwargs_handlers=[data_parallel],
            fsdp_plugin=fsdp_plugin(),
            deepspeed_plugin=deepspeed_plugin(recipe, precision),
        )
    except ValueError as error:
        raise UserError(f"report_to or mixed_precision: {error}; choose another value") from error
    check_launch(accelerator.num_processes)
    level = logging.INFO if accelerator.is_main_process else logging.ERROR
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    logging.getLogger("csezoo").setLevel(level)
    transformers_logging.set_verbosity_error()  # new heads are intended; loading checks other tensors
    transformers_logging.disable_progress_bar()
    if not sys.stderr.isatty() or not accelerator.is_main_process:
        datasets.disable_progress_bars()  # show progress bars only on a terminal
    logger.info(
        "%d process(es) on %s, precision %s",
        accelerator.num_processes,
        accelerator.device.type,
        precision_of(accelerator),
    )
    if tracker and not accelerator.log_with:
        raise UserError(f"report_to: {tracker} is not installed; pip install {tracker}, or use --report_to none")
    return accelerator


def start_tracker(accelerator: Accelerator, recipe: Recipe) -> None:
    """Start the tracker. Call this only after `claim`, because the tracker writes into the run's directory."""
    if accelerator.log_with:
        plain = {key: value for key, value in recipe.to_dict().items() if isinstance(value, bool | int | float | str)}
        accelerator.init_trackers("tracker", config=plain)


def load_evaluation(recipe: Recipe) -> tuple[PairTask | None, list[PairTask]]:
    """Load dev and test pairs. This happens before training, so that missing files are reported at once."""
    use_data = recipe.eval_data != "none"
    dev = load_task(DEV_TASK, recipe.eval_data) if use_data and not recipe.dev_file else None
    if recipe.dev_file:
        dev = load_pairs_file(recipe.dev_file)
        dev.name = "dev"
    if recipe.test_file:
        test = load_pairs_file(recipe.test_file)
        test.name = "test"
        return dev, [test]
    if not use_data:
        return dev, []
    return dev, [load_task(name, recipe.eval_data) for name in STS_TASKS]


RUN_FILES: tuple[str, ...] = ("recipe.yaml", "metrics.jsonl", "results.json", "checkpoints", "best", "tracker")
RUN_FILES += ("non_finite", "prefix_tuning.png", "training_curves.png", "similarities.png")


def _read_keys(recipe: Path) -> dict:
    """Read the keys in a run's recipe.yaml."""
    try:
        values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{recipe} is not valid YAML ({one_line(error)}); choose another --output_dir") from error
    if not isinstance(values, dict):
        raise UserError(f"{recipe} is not a recipe; choose another --output_dir")
    return values


def claim(output: Path, recipe: Recipe) -> None:
    """Claim a directory for a recipe: a new directory, or one with a run of the same recipe to resume.

    Raises:
        UserError: the directory has a run of another recipe, or cannot be written.
    """
    file = output / "recipe.yaml"
    if file.is_file():
        # Keys added since then had their defaults.
        before, now = Recipe().to_dict() | _read_keys(file), recipe.to_dict()
        changed = [key for key in before | now if key not in FREE_KEYS and before.get(key) != now.get(key)]
        runs = (output, *output.glob("seed-*"))
        trained = any(path for run in runs for path in run.glob("checkpoints/step-*"))
        if changed and trained and not (recipe.overwrite or recipe.force):
            raise UserError(
                f"{output} has a run with another {', '.join(changed)}; choose another --output_dir, or use "
                "--overwrite to start again or --force to resume with the change"
            )
        if changed and recipe.force and not recipe.overwrite:
            for run in runs:
                remove(run / "results.json")  # the run is no longer finished
        elif changed:
            for name in RUN_FILES:
                remove(output / name)
            for directory in output.glob("seed-*"):
                remove(directory)
    try:
        output.mkdir(parents=True, exist_ok=True)
        # Leave out these two: they apply only to the command that has them, not to one that reads this recipe.
        dump_recipe(replace(recipe, overwrite=False, force=False), file)
    except OSError as error:
        raise UserError(
            f"output_dir: {output} cannot be written ({one_line(error)}); choose another --output_dir"
        ) from error


def remove(path: Path) -> None:
    """Delete a file or a directory, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_seed(
    recipe: Recipe, seed: int, run: Path, accelerator: Accelerator, dev: PairTask | None, tests: list[PairTask]
) -> dict:
    """Train and evaluate one seed, or read its results if it is finished."""
    results_file = run / "results.json"
    if results_file.is_file():
        logger.info("%s is finished", run)
        return json.loads(results_file.read_text(encoding="utf-8"))
    run.mkdir(parents=True, exist_ok=True)
    if accelerator.is_main_process:
        recover_directory(run / "best")
    try:
        training = train(recipe, seed, run, accelerator, dev)
    except Terminated:
        written = sorted(run.glob("checkpoints/step-*"))
        where = f"resumes from {written[-1]}" if written else "starts again, there was no checkpoint yet"
        logger.warning("stopped by a signal: the same command %s", where)
        raise
    accelerator.free_memory()  # the next seed needs the memory
    results = None
    if accelerator.is_main_process:
        if recipe.whitening:
            whiten(run / "best", recipe)
        results = evaluate_best(recipe, seed, run, training, dev, tests)
        write_json(results_file, results)
    accelerator.wait_for_everyone()
    return results or json.loads(results_file.read_text(encoding="utf-8"))


def evaluate_best(
    recipe: Recipe, seed: int, run: Path, training: dict, dev: PairTask | None, tests: list[PairTask]
) -> dict:
    """Load `best/` as a user would, score it, draw its similarities, and rewrite its card with both."""
    results = []
    tasks = [task for task in (dev, *tests) if task is not None]
    if tasks:
        encode, receipt = load_encoder(str(run / "best"), batch_size=recipe.eval_batch_size)
        vectors = encode_once(encode, tasks)
        results = score(tasks, vectors, {**receipt, "seed": seed})
        shown = {task.name: task for task in tasks}.get("STSBenchmark", tasks[-1])
        similarities = shown.similarities(vectors)
        draw_similarities(similarities, np.array(shown.scores), run / "similarities.png", title=shown.name)
    for name in PICTURES:
        if (run / name).is_file():
            shutil.copy(run / name, run / "best")
    run_results = {
        **recipe_receipt(recipe),
        "seed": seed,
        "results": results,
        "training": training,
        "machine": {
            "device": device(),
            "cpus": os.cpu_count(),
            **versions(),
        },
    }
    save_card(run / "best", recipe, results, runs=[run_results])
    return run_results


def recipe_receipt(recipe: Recipe) -> dict:
    """Return what results say of the recipe: enough to decide which published numbers they compare with."""
    return {
        "model": recipe.name,
        "method": recipe.method,
        "recipe": recipe.recipe,
        "base_model": recipe.base_model,
    }


def aggregate(recipe: Recipe, runs: list[dict], output: Path, accelerator: Accelerator) -> dict:
    """Compute mean and standard deviation over the seeds, and copy the best seed's model (by dev) to `best/`."""
    values = {
        result["task"]: [run["results"][i]["value"] for run in runs] for i, result in enumerate(runs[0]["results"])
    }
    tests = [tests_only(run["results"]) for run in runs]
    if len(tests[0]) > 1:
        values[AVERAGE] = [average(results) for results in tests]
    results = {
        **recipe_receipt(recipe),
        "seeds": recipe.seeds,
        "runs": [{key: run[key] for key in ("seed", "training", "machine")} for run in runs],
        "results": [result for run in runs for result in run["results"]],
        "summary": [
            {"task": task, "mean": statistics.mean(v), "sd": statistics.stdev(v), "n": len(v)}
            for task, v in values.items()
        ],
    }
    if accelerator.is_main_process:
        scores = [run["training"]["dev"] for run in runs]
        chosen = recipe.seeds[scores.index(max(scores)) if None not in scores else -1]
        partial = output / "best.partial"
        remove(partial)
        shutil.copytree(output / f"seed-{chosen}" / "best", partial)
        chosen_results = [result for result in results["results"] if result["seed"] == chosen]
        save_card(partial, recipe, chosen_results, results["summary"], results["runs"])
        replace_directory(partial, output / "best")
        results["best_seed"] = chosen
        write_json(output / "results.json", results)
    accelerator.wait_for_everyone()
    return results


def summary(results: dict, output: Path) -> str:
    """Return the text that a run prints at its end."""
    lines = []
    if "summary" in results:
        lines += [f"{s['task']:<16} {s['mean']:.2f} ± {s['sd']:.2f} ({s['n']} seeds)" for s in results["summary"]]
    elif results["results"]:
        tests = tests_only(results["results"]) or results["results"]
        lines += [format_table([(results["model"], tests)])]
        if results["training"]["dev"] is not None:
            lines += [f"dev {results['training']['dev']:.2f} at step {results['training']['best_step']}"]
    best = output / "best"
    return "\n".join([*lines, "", f"The finished repository: {best}", *load_lines(best)])


def load_lines(repository: Path, sentences: Sequence[str] = ("A cat sits on the mat.", "A dog runs.")) -> list[str]:
    """Return three lines of Python that load a repository and encode sentences."""
    return [
        "  from transformers import AutoModel",
        f'  model = AutoModel.from_pretrained("{repository}", trust_remote_code=True)',
        f"  embeddings = model.encode({json.dumps([*sentences])})",
    ]
