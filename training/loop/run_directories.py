"""The directories of a run: its files, where each seed is trained, and how processes divide the seeds."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ..errors import UserError, others, writing
from ..evaluation.baseline import BASELINE, BASELINE_RANKS
from ..files import in_use_error, locked, locked_elsewhere, read_json, recover_directory, remove
from ..recipes import FREE_KEYS, Recipe, dump_recipe
from ..recipes.reading import read_values
from .checkpoints import RECEIPT

logger = logging.getLogger(__name__)
METRICS = "metrics.jsonl"
# Files of one seed. When seeds are added to a run with one seed, these move into that seed's directory, in this order.
# While the metrics are in the run's directory, the move is not finished.
OF_SEED: tuple[str, ...] = ("results.json", "checkpoints", "best", "non_finite", "prefix_tuning.png")
OF_SEED += (BASELINE, BASELINE_RANKS, "training_curves.png", "similarities.png", "ranks.npz", "best_weights", METRICS)
# The recipe is the last, so that a deletion that was interrupted still knows whose files these are.
RUN_FILES: tuple[str, ...] = (*OF_SEED, "tracker", "recipe.yaml")
# What a killed process leaves half-written.
LITTER: tuple[str, ...] = (
    ".*.partial",
    "best_weights/.*.partial",
    "non_finite/*/.*.partial",
    "best.partial",
    "best.old",
    "checkpoints/partial-*",
)
# This lock is held while the seeds are divided or averaged. The lock of a directory is held while a seed is trained in
# it.
SEEDS_LOCK = ".seeds.lock"


@contextmanager
def seeds_locked(output: Path) -> Iterator[None]:
    """Keep other processes from dividing or averaging the seeds of a run, and finish a move that was interrupted."""
    with locked(output, SEEDS_LOCK, wait=True):
        seeds = recorded_keys(output)["seeds"]
        if len(seeds) > 1 and (output / METRICS).is_file() and (output / f"seed-{seeds[0]}").is_dir():
            move_to_seed(output, seeds[0])
        yield


def clear(output: Path) -> None:
    """Delete a run with all its seeds."""
    for path in _run_files(output):
        remove(path)


def is_in_run(path: Path, output: Path) -> bool:
    """Return whether a path is a run's directory, or in what a run in this directory may delete."""
    path, output = path.resolve(), output.resolve()
    return path == output or any(map(path.is_relative_to, _run_files(output)))


def _run_files(output: Path) -> list[Path]:
    """Return the files and directories of a run, in the order in which they are deleted."""
    return [*_seed_directories(output), *(output / name for name in RUN_FILES)]


def _seed_directories(output: Path) -> list[Path]:
    """Return the directories of the seeds of a run. Others have names of their own, such as `seed-plots`."""
    return [path for path in output.glob("seed-*") if re.fullmatch(r"seed-\d+", path.name) and path.is_dir()]


def recorded_keys(output: Path) -> dict:
    """Return the keys in a run's recipe.yaml; without the file, those of a run without seeds."""
    recipe = output / "recipe.yaml"
    if not recipe.is_file():
        return {"seeds": []}
    if not (values := read_values(recipe)):
        raise UserError(f"{recipe} is not a recipe; choose another --output_dir")
    seeds = values.get("seeds", Recipe().seeds)
    return {**values, "seeds": seeds if isinstance(seeds, list) else [seeds]}


def claim_run(output: Path, recipe: Recipe) -> list[int]:
    """Claim a directory for a recipe: a new directory, or one with a run of the same recipe to resume.

    Returns:
        The seeds of the run: those that it had, and then those that the recipe adds.

    Raises:
        UserError: the directory has a run of another recipe or files that no run wrote, or cannot be written.
    """
    file = output / "recipe.yaml"
    written = recorded_keys(output)
    seeds = written["seeds"]
    trained, changed = is_begun(output), []
    if file.is_file():
        now, free = recipe.to_dict(), FREE_KEYS | {"seeds"}
        changed = [key for key in written | now if key not in free and written.get(key) != now.get(key)]
    if changed and trained and not (recipe.overwrite or recipe.force):
        raise UserError(
            f"{output} has a run with {others(changed)}; choose another --output_dir, or use "
            "--overwrite to start again or --force to resume with the change"
        )
    runs = (output, *_seed_directories(output))
    busy = [run for run in runs if locked_elsewhere(run)]
    if changed and busy:
        raise in_use_error(busy[0])
    if changed and recipe.force and not recipe.overwrite:
        return _with_added(seeds, recipe)  # `begin_seed` records the change: data, model or checkpoint may refuse it
    if changed or (seeds != recipe.seeds and not (trained or busy)):
        if not (file.is_file() or recipe.overwrite):
            refuse_foreign(output)
        clear(output)
    return record(output, recipe)


def record(output: Path, recipe: Recipe) -> list[int]:
    """Write the recipe of a run, and return its seeds: those that it had, and then those that the recipe adds."""
    seeds = _with_added(recorded_keys(output)["seeds"], recipe)
    with writing("output_dir", output, "; choose another --output_dir"):
        output.mkdir(parents=True, exist_ok=True)
        # Leave out these two: they apply only to the command that has them, not to one that reads this recipe.
        dump_recipe(replace(recipe, seeds=seeds, overwrite=False, force=False), output / "recipe.yaml")
    return seeds


def _with_added(seeds: list[int], recipe: Recipe) -> list[int]:
    return seeds + [seed for seed in recipe.seeds if seed not in seeds]


def begin_seed(output: Path, recipe: Recipe, run: Path) -> None:
    """Record the recipe that a seed is trained with from here on, which may end a finished seed and the mean.

    Call this when nothing can refuse the recipe any more: until then, a run is what it was.
    """
    with seeds_locked(output):
        record(output, recipe)
        if (run / "results.json").is_file():
            for directory in (run, output):
                remove(directory / "results.json")


def is_begun(output: Path) -> bool:
    """Return whether a run has results or a checkpoint. A finished run may have lost its checkpoints."""
    runs = (output, *_seed_directories(output))
    return any((run / "results.json").is_file() or [*run.glob("checkpoints/step-*")] for run in runs)


def refuse_foreign(output: Path) -> None:
    """Refuse a directory without a recipe if it has a file that a run would delete."""
    if foreign := [path.name for path in _run_files(output) if path.exists()]:
        raise UserError(
            f"output_dir: {output} has {foreign[0]} without the recipe of its run; choose another --output_dir, or "
            "use --overwrite to delete it"
        )


def seed_directory(output: Path, seeds: list[int], seed: int) -> Path:
    """Return where a seed of a run is trained: `seed-N`, or the run's own directory if it was the first one."""
    own = output / f"seed-{seed}"
    if len(seeds) == 1:
        return output
    if seed == seeds[0] and ((output / METRICS).is_file() or (locked_elsewhere(output) and not own.is_dir())):
        return output
    return own


def refuse_busy(output: Path, recipe: Recipe) -> None:
    """Refuse a command whose seeds are all being trained by other processes. This changes no file."""
    seeds = _with_added(recorded_keys(output)["seeds"], recipe)
    runs = [seed_directory(output, seeds, seed) for seed in recipe.seeds]
    if all(map(locked_elsewhere, runs)):
        raise in_use_error(runs[0])


def claim_seed(output: Path, recipe: Recipe, seed: int, held: ExitStack) -> tuple[list[int], Path | None]:
    """Claim the run, and lock the directory of a seed until `held` closes.

    Returns:
        The seeds of the run, and the seed's directory: None if another process is training it.
    """
    with seeds_locked(output):
        seeds = claim_run(output, recipe)
        if not locked_elsewhere(output):
            remove_litter(output)
        run = seed_directory(output, seeds, seed)
        if locked_elsewhere(run):
            logger.info("seed %d is being trained by another process", seed)
            return seeds, None
        held.enter_context(locked(run))
        remove_litter(run)
    return seeds, run


def move_to_seed(output: Path, seed: int) -> None:
    """Move the files of a run of one seed into a directory of its own. If it is interrupted, call it again."""
    target = output / f"seed-{seed}"
    target.mkdir(exist_ok=True)
    for name in OF_SEED:
        if (output / name).exists():
            (output / name).rename(target / name)


def remove_litter(run: Path) -> None:
    """Delete what a killed process left half-written in a run's directory. Call this while the directory is locked."""
    recover_directory(run / "best")
    for pattern in LITTER:
        for path in run.glob(pattern):
            remove(path)


def finished_seeds(output: Path, seeds: list[int]) -> dict[int, dict]:
    """Return the results of the finished seeds of a run."""
    files = {seed: seed_directory(output, seeds, seed) / "results.json" for seed in seeds}
    return {seed: _finished(file) for seed, file in files.items() if file.is_file()}


def _finished(file: Path) -> dict:
    """Return the results of a finished seed, or refuse a file that is damaged or of something else."""
    results = read_json(file)
    needed = ("model", "seed", "results", "baseline", "gain", "training", "machine", "neighbours")
    missing = [key for key in needed if key not in results]
    if missing or RECEIPT not in results["training"]:
        named = ", ".join(missing) or RECEIPT
        raise UserError(
            f"{file} does not have the results of a run ({named} missing); delete it, and the same command evaluates "
            "the run again"
        )
    return results


def best_directory(output: Path, results: dict) -> Path:
    """Return the directory of the finished model: the run's, or that of the only finished seed."""
    if "summary" in results:
        return output / "best"
    return seed_directory(output, recorded_keys(output)["seeds"], results["seed"]) / "best"
