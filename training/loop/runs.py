"""Runs: every seed of a recipe trained, its best model evaluated, the seeds aggregated."""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
import sys
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
from ..files import locked, recover_directory, replace_directory, room_for_run, write_json
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
    """Train every seed of a recipe, evaluate the best models, aggregate, and show the summary.

    Returns:
        The content of the run's `results.json`.
    """
    output = Path(recipe.output_dir or f"runs/{recipe.name}")
    accelerator = make_accelerator(recipe, output)
    with locked(output) if accelerator.is_main_process else nullcontext(), room_for_run(output):
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
    """The processes of this run, checked against what was asked for."""
    tracker = None if recipe.report_to == "none" else recipe.report_to
    # A stage on labelled pairs leaves the heads of the other one without gradients, and the other way round; without a
    # contrastive loss a projection may have none.
    some = recipe.model.get("nli_classes", 0) > 0 or recipe.model.get("contrastive_weight", 1) == 0
    unused = DistributedDataParallelKwargs(find_unused_parameters=some)
    precision = choose_precision(recipe.mixed_precision)
    try:
        accelerator = Accelerator(
            mixed_precision=precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=recipe.gradient_accumulation_steps),
            log_with=tracker,
            project_dir=str(output),
            kwargs_handlers=[unused],
            fsdp_plugin=fsdp_plugin(),
            deepspeed_plugin=deepspeed_plugin(recipe, precision),
        )
    except ValueError as error:
        raise UserError(f"report_to or mixed_precision: {error}") from error
    check_launch(accelerator.num_processes)
    level = logging.INFO if accelerator.is_main_process else logging.ERROR
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    logging.getLogger("csezoo").setLevel(level)
    transformers_logging.set_verbosity_error()  # fresh heads are what training wants; misfits raise
    transformers_logging.disable_progress_bar()
    if not sys.stderr.isatty() or not accelerator.is_main_process:
        datasets.disable_progress_bars()  # bars are for terminals
    logger.info(
        "%d process(es) on %s, precision %s",
        accelerator.num_processes,
        accelerator.device.type,
        precision_of(accelerator),
    )
    if tracker and not accelerator.log_with:
        raise UserError(f"report_to: {tracker} is not installed: pip install {tracker}, or --report_to none")
    return accelerator


def start_tracker(accelerator: Accelerator, recipe: Recipe) -> None:
    """Open the tracker, once the run's directory is known to be this run's."""
    if accelerator.log_with:
        plain = {key: value for key, value in recipe.to_dict().items() if isinstance(value, bool | int | float | str)}
        accelerator.init_trackers("tracker", config=plain)


def load_evaluation(recipe: Recipe) -> tuple[PairTask | None, list[PairTask]]:
    """Dev and test pairs, before anything is trained: what is missing is said at once."""
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


def _written(recipe: Path) -> dict:
    """The keys of a run's recipe.yaml."""
    try:
        values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{recipe} is no YAML ({one_line(error)}): give another --output_dir") from error
    if not isinstance(values, dict):
        raise UserError(f"{recipe} is no recipe: give another --output_dir")
    return values


def claim(output: Path, recipe: Recipe) -> None:
    """Take a directory for a recipe: new, or the same recipe's to go on with.

    Raises:
        UserError: it holds another recipe's run.
    """
    known = output / "recipe.yaml"
    if known.is_file():
        # A key that the code which wrote it did not have was at its default.
        before, now = Recipe().to_dict() | _written(known), recipe.to_dict()
        changed = [key for key in before | now if key not in FREE_KEYS and before.get(key) != now.get(key)]
        runs = (output, *output.glob("seed-*"))
        made = any(path for run in runs for path in run.glob("checkpoints/step-*"))
        if changed and made and not (recipe.overwrite or recipe.force):
            raise UserError(
                f"{output} holds a run with another {', '.join(changed)}: give another --output_dir, --overwrite to "
                "begin anew, or --force to go on with what is now"
            )
        if changed and recipe.force and not recipe.overwrite:
            for run in runs:
                remove(run / "results.json")  # it is no longer finished
        elif changed:
            for name in RUN_FILES:
                remove(output / name)
            for directory in output.glob("seed-*"):
                remove(directory)
    try:
        output.mkdir(parents=True, exist_ok=True)
        # These are asked for each time: a recipe read back from here must not do them by itself.
        dump_recipe(replace(recipe, overwrite=False, force=False), known)
    except OSError as error:
        raise UserError(f"output_dir: {output} cannot be written ({one_line(error)})") from error


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_seed(
    recipe: Recipe, seed: int, run: Path, accelerator: Accelerator, dev: PairTask | None, tests: list[PairTask]
) -> dict:
    """One seed, trained and evaluated; a finished one is read from its results."""
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
        where = f"goes on from {written[-1]}" if written else "begins again, there was no checkpoint yet"
        logger.warning("stopped by a signal: the same command %s", where)
        raise
    accelerator.free_memory()  # the next seed needs the room
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
    """Load `best/` as a user would, score it, draw it, and write its card again with both."""
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
    made = {
        **identity(recipe),
        "seed": seed,
        "results": results,
        "training": training,
        "machine": {
            "device": device(),
            "cpus": os.cpu_count(),
            **versions(),
        },
    }
    save_card(run / "best", recipe, results, runs=[made])
    return made


def identity(recipe: Recipe) -> dict:
    """What a results file says of the model: enough to tell whether a paper's numbers may stand beside it."""
    return {
        "model": recipe.name,
        "method": recipe.method,
        "recipe": recipe.recipe,
        "base_model": recipe.base_model,
    }


def aggregate(recipe: Recipe, runs: list[dict], output: Path, accelerator: Accelerator) -> dict:
    """Mean and standard deviation over the seeds, and the best seed's model (by dev) as the run's `best/`."""
    values = {
        result["task"]: [run["results"][i]["value"] for run in runs] for i, result in enumerate(runs[0]["results"])
    }
    tests = [tests_only(run["results"]) for run in runs]
    if len(tests[0]) > 1:
        values[AVERAGE] = [average(results) for results in tests]
    results = {
        **identity(recipe),
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
        own = [result for result in results["results"] if result["seed"] == chosen]
        save_card(partial, recipe, own, results["summary"], results["runs"])
        replace_directory(partial, output / "best")
        results["best_seed"] = chosen
        write_json(output / "results.json", results)
    accelerator.wait_for_everyone()
    return results


def summary(results: dict, output: Path) -> str:
    """What a run prints at its end."""
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


def load_lines(repository: Path) -> list[str]:
    """The three lines that load a repository."""
    return [
        "  from transformers import AutoModel",
        f'  model = AutoModel.from_pretrained("{repository}", trust_remote_code=True)',
        '  embeddings = model.encode(["A cat sits on the mat.", "A dog runs."])',
    ]
