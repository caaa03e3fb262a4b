"""Runs: train every seed of a recipe, evaluate the best models and aggregate the seeds."""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState

from ..data.sources import Source
from ..environment import device_name, processor, versions
from ..errors import Terminated, UserError
from ..evaluation.baseline import AS_SERVED, gain, gain_line, is_better, read_baseline
from ..evaluation.encoders import load_encoder
from ..evaluation.ranks import RANKS, save_ranks
from ..evaluation.report import AVERAGE, average, dev_only, format_table, tests_only
from ..evaluation.selection import hold_out, load_dev_tasks
from ..evaluation.suites import Task, encode_once, score
from ..evaluation.tasks.names import STS_TASKS
from ..evaluation.tasks.neighbours import nearest_sentences, side_by_side
from ..evaluation.tasks.sts import PairTask, load_pairs_file, load_task
from ..files import (
    in_use_error,
    locked,
    locked_elsewhere,
    read_json,
    remove,
    replace_directory,
    report_full_disk,
    write_json,
)
from ..loading.served_encoder import ServedEncoder, follow_base
from ..pictures.captions import PICTURES
from ..pictures.vectors import draw_similarities
from ..publishing.repository import save_card
from ..recipes import Recipe, load_recipe, origin
from .best_model import BestModel, pairs_to_draw, pairs_to_show
from .building import build, build_on
from .checkpoints import RECEIPT, newest, read_state, refuse_another_build, step_of
from .distributed.hosts import wait_for_all
from .distributed.launch import join_processes, make_accelerator, on_main, start_tracker
from .run_data import RunData
from .run_directories import (
    begin_seed,
    best_directory,
    claim_seed,
    finished_seeds,
    is_begun,
    is_in_run,
    move_to_seed,
    recorded_keys,
    refuse_busy,
    seed_directory,
    seeds_locked,
)
from .run_receipt import local_checksums, recipe_sha256, refuse_changed_data, refuse_mixed_seeds
from .training_log import TrainingLog
from .training_loop import plan_stages, train

logger = logging.getLogger(__name__)


def run_recipe(recipe: Recipe, *, show: bool = True, another: bool = False) -> dict:
    """Train every seed of a recipe, evaluate the best models, aggregate the seeds and print a summary.

    Seeds that the run already has are kept. Another process may train other seeds of the same run at the same time:
    each takes the seeds that no other is training, and aggregates all that are finished.

    Args:
        show: whether to print the summary.
        another: whether this process makes another run after it. Its group of processes then stays together: a new
            one at the same address could meet what is left of the old one.

    Returns:
        The content of the run's `results.json`.
    """
    output = Path(recipe.output_dir or f"runs/{recipe.name}")
    refuse_inputs(recipe, output)
    processes = join_processes().distributed_type
    accelerator = make_accelerator(recipe, output)
    recipe, served = on_main(accelerator, partial(follow_base, recipe))
    with report_full_disk(output):
        results = _run_seeds(recipe, served, output, accelerator)
    if another:
        for tracker in accelerator.trackers:
            tracker.finish()
        AcceleratorState._reset_state()
        # accelerate has noted FSDP there, and would not shard the next run.
        PartialState().distributed_type = processes
    else:
        accelerator.end_training()
    if show and accelerator.is_main_process:
        print(summary(results, best_directory(output, results)), flush=True)
    return results


def refuse_inputs(recipe: Recipe, output: Path) -> None:
    """Refuse files that cannot be read, and a model in the run's directory, which an older run may delete with it."""
    for key in ("train_file", "nli_file"):
        if file := getattr(recipe, key):
            Source(key, file).refuse_file(Path(file))
    for key in ("base_model", "generator"):
        name = getattr(recipe, key)
        if name and is_in_run(Path(name), output):
            raise UserError(f"output_dir: {output} has the {key} {name}; give another --output_dir")


def _run_seeds(recipe: Recipe, served: ServedEncoder | None, output: Path, accelerator: Accelerator) -> dict:
    """Train and evaluate each seed that is not finished and that no other process trains, and aggregate them."""
    on_main(accelerator, partial(refuse_busy, output, recipe))
    dev, tests = load_evaluation(recipe)
    if recipe.overwrite and on_main(accelerator, partial(is_begun, output)):
        # Read the model and the data first: a mistake in the recipe must not cost the old run.
        plan_stages(recipe, RunData(recipe, recipe.seeds[0], build_on(recipe, served), accelerator))
    for number, seed in enumerate(recipe.seeds):
        with ExitStack() as held:
            seeds, run = on_main(accelerator, partial(claim_seed, output, recipe, seed, held))
            if number == 0:
                start_tracker(accelerator, recipe)
            if run is None:
                continue
            finished = receipts(on_main(accelerator, partial(finished_seeds, output, seeds)))
            changed = recipe.force and seed in finished and finished[seed]["recipe"] != recipe_sha256(recipe)
            if seed in finished and not changed:
                if not recipe.force:
                    now = local_checksums(recipe, dev, tests)
                    on_main(accelerator, partial(refuse_changed_data, run, finished[seed], now))
                logger.info("%s is finished", run)
                continue
            of_seed, begin = replace(recipe, seeds=seeds), partial(begin_seed, output, recipe, run)
            try:
                training = train(of_seed, served, seed, run, accelerator, dev, tests, finished, begin)
            except Terminated as stopped:
                written = sorted(run.glob("checkpoints/step-*"))
                where = (
                    f"resumes from {written[-1]}" if written else "starts again, because there was no checkpoint yet"
                )
                stopped.way_on = f"the same command {where}"
                raise
            accelerator.free_memory()  # the next seed needs the memory
            if accelerator.is_main_process:
                logger.info("evaluating %s", run / "best")
                evaluated = evaluate_best(of_seed, seed, run, training, dev, tests, accelerator.device)
                write_json(run / "results.json", evaluated)
            wait_for_all()
    results = on_main(accelerator, partial(conclude, recipe, output))
    wait_for_all()  # no process may leave while another still talks to it
    return results


def load_evaluation(recipe: Recipe) -> tuple[list[Task], list[PairTask]]:
    """Load dev tasks and test pairs. This happens before training, so that missing files are reported at once."""
    dev = load_dev(recipe)
    if not dev and (recipe.patience is not None or recipe.endurance is not None):
        logger.warning("patience, endurance: there are no dev pairs, so the run makes all its updates")
    if chooses_and_judges(recipe):
        chosen, judging = hold_out(load_pairs_file(str(recipe.dev_file)))
        counts = len(chosen.pairs), len(judging.pairs)
        logger.info("dev_file: %d pairs choose the checkpoint, the other %d judge it", *counts)
        return dev, [judging]
    if recipe.test_file:
        return dev, [replace(load_pairs_file(recipe.test_file), name="test")]
    if recipe.eval_data == "none":
        return dev, []
    return dev, [load_task(name, recipe.eval_data) for name in STS_TASKS]


def chooses_and_judges(recipe: Recipe) -> bool:
    """Return whether the pairs of `dev_file` would choose a checkpoint and judge it, so that a part is held out.

    So they would if they are the test pairs too, or if nothing else is named: a user's pairs do not ask the Hub.
    """
    dev, test = recipe.dev_file, recipe.test_file
    return bool(dev and (os.path.realpath(test) == os.path.realpath(dev) if test else recipe.eval_data == "hub"))


def load_dev(recipe: Recipe) -> list[Task]:
    """Load what chooses the best checkpoint."""
    if recipe.dev_file:
        pairs = load_pairs_file(recipe.dev_file)
        return [hold_out(pairs)[0] if chooses_and_judges(recipe) else replace(pairs, name="dev")]
    return load_dev_tasks(recipe.select_by, recipe.eval_data) if recipe.eval_data != "none" else []


def evaluate_best(
    recipe: Recipe,
    seed: int,
    run: Path,
    training: dict,
    dev: list[Task],
    tests: list[PairTask],
    device: torch.device,
) -> dict:
    """Load `best/` as a user would, score it, draw its similarities and rewrite its card.

    The card also shows the nearest sentences of some sentences, before and after training.
    """
    results, nearest, figures = [], [], {}
    tasks, baseline = [*dev, *tests], read_baseline(run)
    if tasks:
        encode, receipt = load_encoder(str(run / "best"), batch_size=recipe.eval_batch_size, device=device)
        vectors = encode_once(encode, tasks)
        results = score(tasks, vectors, {**receipt, "seed": seed})
        if tests:
            save_ranks(run / RANKS, tests, vectors, receipt["model_sha256"])
        figures = gain(run, tasks, vectors, results)
        for drawn in pairs_to_draw(tasks):
            similarities = drawn.similarities(vectors)
            draw_similarities(similarities, np.array(drawn.scores), run / "similarities.png", title=drawn.name)
        for shown in pairs_to_show(recipe, tasks):
            nearest = side_by_side(baseline.get("neighbours", []), nearest_sentences(shown, vectors))
    for name in PICTURES:
        if (run / name).is_file():
            shutil.copy(run / name, run / "best")
    run_results = {
        **recipe_receipt(recipe),
        "seed": seed,
        "results": results,
        "baseline": {key: value for key, value in baseline.items() if key != "neighbours"},
        "gain": figures,
        "neighbours": nearest,
        "training": training,
        "machine": {
            "device": device_name(device),
            "processor": processor(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            **versions(),
        },
    }
    save_card(run / "best", recipe, run_results)
    if figures and training["updates"] and figures["name"] == AS_SERVED and not is_better(figures):
        logger.warning("%s; a serving model that is no better need not be replaced", gain_line(figures))
    return run_results


def write_unfinished(run: Path) -> int:
    """Write `best/` of a run of one seed that is not finished, from its newest checkpoint, as its end would.

    The weights are the best so far, or their soup, with a whitening or a flow if the recipe asks for one. The card has
    no results. The run can be trained further: its end replaces `best/`.

    Returns:
        The updates before the checkpoint.

    Raises:
        UserError: another process is training the run, there is no sound checkpoint, its best weights are lost, or the
            recipe, the base model or the tokenizer is not that of the checkpoint.
    """
    recipe = load_recipe(str(run / "recipe.yaml"))
    with locked(run):
        checkpoint = newest(run / "checkpoints", {}, force=True)  # the data need not be here
        if checkpoint is None:
            raise UserError(f"{run} has no checkpoint yet; train it further")
        accelerator, (seed, *_) = Accelerator(), recipe.seeds
        built = build(recipe)
        counters = read_state(checkpoint)
        refuse_another_build(checkpoint, recipe, seed, built)
        built.model.to(accelerator.device)
        log = TrainingLog(run, accelerator)
        best = BestModel(run, built, recipe, load_dev(recipe) if recipe.soup else [], log)
        best.restore(counters)
        best.write(seed)
        return step_of(checkpoint)


def recipe_receipt(recipe: Recipe) -> dict:
    """Return what results say of the recipe: enough to decide which published numbers they compare with."""
    return {"model": recipe.name, **origin(recipe)}


def receipts(runs: dict[int, dict]) -> dict[int, dict]:
    """Return the receipts of finished seeds."""
    return {seed: run["training"][RECEIPT] for seed, run in runs.items()}


def conclude(recipe: Recipe, output: Path) -> dict:
    """Aggregate all finished seeds of the run, or return the results of the only one.

    Raises:
        UserError: other processes are training all seeds of the recipe, or two finished seeds differ in more than
            the seed.
    """
    with seeds_locked(output):
        seeds = recorded_keys(output)["seeds"]  # another process may have added some
        finished = finished_seeds(output, seeds)
        refuse_mixed_seeds(receipts(finished), force=recipe.force)
        if unfinished := [str(seed) for seed in seeds if seed not in finished]:
            logger.info("not finished yet: seed %s", ", ".join(unfinished))
        own = [finished[seed] for seed in recipe.seeds if seed in finished]
        if not own:
            raise in_use_error(seed_directory(output, seeds, recipe.seeds[0]))
        alone = seed_directory(output, seeds, seeds[0]) == output
        if len(finished) == 1 or (alone and locked_elsewhere(output)):
            return own[0]
        if alone:
            move_to_seed(output, seeds[0])
        return aggregate(replace(recipe, seeds=list(finished)), list(finished.values()), output)


def aggregate(recipe: Recipe, runs: list[dict], output: Path) -> dict:
    """Compute mean and standard deviation over the seeds, and copy the best seed's model (by dev) to `best/`."""
    values = {
        result["task"]: [run["results"][i]["value"] for run in runs] for i, result in enumerate(runs[0]["results"])
    }
    tests = [tests_only(run["results"]) for run in runs]
    if len(tests[0]) > 1:
        values[AVERAGE] = [average(results) for results in tests]
    # A whitening or a flow is fitted after the last dev score of the run: what is served has another one.
    mapped = [dev_only(run["results"]) if recipe.whitening or recipe.flow else [] for run in runs]
    scores = [average(dev) if dev else run["training"]["dev"] for run, dev in zip(runs, mapped, strict=True)]
    chosen = recipe.seeds[scores.index(max(scores)) if None not in scores else -1]
    results = {
        **recipe_receipt(recipe),
        "seeds": recipe.seeds,
        "runs": [{key: run[key] for key in ("seed", "gain", "training", "machine")} for run in runs],
        "baseline": runs[0]["baseline"],
        "results": [result for run in runs for result in run["results"]],
        "summary": [
            {"task": task, "mean": statistics.mean(v), "sd": statistics.stdev(v), "n": len(v)}
            for task, v in values.items()
        ],
        "best_seed": chosen,
        "neighbours": runs[recipe.seeds.index(chosen)]["neighbours"],
    }
    partial = output / "best.partial"
    remove(partial)
    shutil.copytree(output / f"seed-{chosen}" / "best", partial)
    save_card(partial, recipe, results)
    replace_directory(partial, output / "best")
    write_json(output / "results.json", results)
    return results


def summary(results: dict, best: Path) -> str:
    """Return the text that a run prints at its end."""
    lines = []
    if "summary" in results:
        lines += [f"{s['task']:<16} {s['mean']:.2f} ± {s['sd']:.2f} ({s['n']} seeds)" for s in results["summary"]]
        lines += [f"seed {run['seed']}, {gain_line(run['gain'])}" for run in results["runs"] if run["gain"]]
    elif results["results"]:
        tests = tests_only(results["results"]) or results["results"]
        lines += [format_table([(results["model"], tests)])]
        if results["training"]["dev"] is not None:
            training, mapped = results["training"], results["training"].get("mapped_by")
            before = f", before the {mapped}" if mapped else ""
            lines += [f"dev {training['dev']:.2f} at step {training['best_step']}{before}"]
        if results["gain"] and results["training"]["updates"]:
            lines += [gain_line(results["gain"])]
    return "\n".join([*lines, "", f"The finished repository: {best}", *load_lines(best)])


def load_lines(repository: Path, sentences: Sequence[str] = ("A cat sits on the mat.", "A dog runs.")) -> list[str]:
    """Return three lines of Python that load a repository and encode sentences."""
    plain = "backbone_config" not in read_json(repository / "config.json")
    trust = "" if plain else ", trust_remote_code=True"
    return [
        "  from sentence_transformers import SentenceTransformer",
        f'  model = SentenceTransformer("{repository}"{trust})',
        f"  embeddings = model.encode({json.dumps([*sentences])})",
    ]
