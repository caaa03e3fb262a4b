"""The command that makes the papers' tables and figures: reproduce."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..environment import show_log
from ..errors import UserError
from ..files import create_directory
from ..machines.on_ray import run_on_ray
from ..machines.on_slurm import run_on_slurm
from .options import Command

INSTEAD = {"seeds": "seeds", "output_dir": "out"}  # options of reproduce and tune


def add_commands(command: Command) -> None:
    added = command(
        "reproduce",
        reproduce,
        "make a table or a figure of a paper, or list all of them with their state",
        "csezoo reproduce diffaug/table-1 --rows 'DiffAug*' --seeds 1 2 3 --dry-run",
    )
    added.add_argument("item", nargs="?", metavar="PAPER/ITEM", help="a table or figure; without it, list all of them")
    added.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="make only these rows; * matches any text")
    added.add_argument("--seeds", nargs="+", type=int, default=[], metavar="SEED", help="instead of the paper's seeds")
    changed = "set keys of every trained row; the row is then marked as not comparable"
    added.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=changed)
    profile = "a YAML file that replaces base models and data by others, and limits the updates"
    added.add_argument("--profile", metavar="FILE", help=profile)
    added.add_argument(
        "--dry-run", action="store_true", help="print every run with its command and its estimated cost"
    )
    add_machines(added)
    out = "directory of the tables and their runs; all tables in it share their runs (default: reproduced)"
    added.add_argument("--out", default="reproduced", metavar="DIR", help=out)
    data = "evaluation data: hub (default), or a directory in SentEval's layout; a profile may name one too"
    added.add_argument("--data", metavar="DIR", help=data)


def add_machines(added: argparse.ArgumentParser) -> None:
    """Add the options that say on which machines runs are made."""
    where = "where runs are trained: here (default); on a Ray cluster, or on one that is started on this machine "
    where += "(ray); or in a Slurm job array (slurm)"
    added.add_argument("--on", default="here", choices=("here", "ray", "slurm"), help=where)
    options = "options of sbatch in one text after =, such as --sbatch='--time=4:00:00 --gres=gpu:1 --qos=low'"
    added.add_argument("--sbatch", metavar="OPTIONS", type=words, help=options)
    launcher = "options of accelerate launch in one text after =, such as --launch='--config_file FILE'"
    added.add_argument("--launch", metavar="OPTIONS", type=words, default=[], help=launcher)


def words(text: str) -> list[str]:
    """Return the words of a text as a shell reads them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not a list of options ({error})") from error


def refuse_unused_machines(options: argparse.Namespace) -> None:
    """Refuse options of machines that the runs are not made on."""
    if options.sbatch is not None and options.on != "slurm":
        raise UserError("--sbatch: only Slurm has these options; give --on slurm too")


def begin(out: Path) -> None:
    """Create the directory of a table or a search, and show what happens in it."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            "this command starts `accelerate launch` itself; run it without, and give the options as "
            "--launch='--num_processes 2'"
        )
    create_directory(out, "--out")
    show_log()


def hand_out(
    options: argparse.Namespace, work: Callable[[Any], object], tasks: Sequence[Any], name: str, folder: Path
) -> dict[int, str]:
    """Run `work(task)` for each task on Ray or Slurm, and return the numbers of those that failed, with the reason."""
    if options.on == "ray":
        return run_on_ray(work, tasks, options.launch)
    return run_on_slurm(work, tasks, folder / "slurm", name=name, options=options.sbatch or [])


def reproduce(options: argparse.Namespace) -> None:
    from ..reproducing.manifests import load_item
    from ..reproducing.measuring import finished
    from ..reproducing.plan import plan
    from ..reproducing.profiles import load_profile
    from ..reproducing.reports import describe, list_items, unique_runs

    refuse_unused_machines(options)
    out, profile = Path(options.out), load_profile(options.profile, options.data)
    if options.item is None:
        if options.rows or options.set or options.dry_run or options.launch or options.on != "here":
            raise UserError(
                "give a table or figure; without one, only --out, --seeds, --profile and --data have a meaning"
            )
        print(list_items(out, profile, options.seeds))
        return
    item, overrides = load_item(options.item), key_values(options.set)
    planned = plan(item, out, rows=options.rows, seeds=options.seeds, overrides=overrides, profile=profile)
    if options.dry_run:
        print(describe(item, planned))
        return

    from ..evaluation.tasks.names import STS_TASKS
    from ..evaluation.tasks.sts import load_task
    from ..reproducing.against import compared
    from ..reproducing.pooling import pool
    from ..reproducing.runs import make, make_one, train
    from ..reproducing.writing import write_item

    begin(out)
    runs, launcher = unique_runs(planned), options.launch
    settings: dict[str, Any] = {"columns": item.columns, "data": profile.data, "glue": item.glue}
    settings["transfer_rows"] = profile.transfer_rows
    settings["pairs"] = [load_task(name, profile.data) for name in STS_TASKS] if item.against else []
    settings["train"] = partial(train, launcher=launcher)
    if options.on == "here":
        failed = make(runs, **settings)
    else:
        missing = [run for run in runs if not finished(run, item.columns)]
        work = partial(make_one, **settings)
        reasons = hand_out(options, work, missing, item.name, out / item.name) if missing else {}
        failed = {missing[number].directory: reason for number, reason in reasons.items()}
    rows = {row.row.label: row for row in planned}
    # Rows may be made one after the other, so a table keeps those that are there.
    for label in (row.label for row in item.rows if row.label not in rows):
        try:
            (row,) = plan(item, out, rows=[label], seeds=options.seeds, overrides=overrides, profile=profile)
        except UserError:
            continue  # these settings do not fit it, so it was not made with them
        if any(run.directory.is_dir() and finished(run, item.columns) for run in row.runs):
            rows[label] = row
    shown = [rows[row.label] for row in item.rows if row.label in rows]
    lines = [pool(row, item.columns, item.source, failed) for row in shown]
    if item.against:
        lines = compared(item, shown, lines, settings["pairs"], failed)
    for path in write_item(item, shown, lines, out / item.name, profile.data):
        print(path)
    if failed:
        where, reason = next(iter(failed.items()))
        raise UserError(f"{len(failed)} of {len(runs)} runs failed; the first is {where}: {reason}")


def key_values(words: list[str]) -> dict[str, object]:
    """Return the keys that `--set KEY=VALUE` sets."""
    overrides: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"set: {word!r} must be KEY=VALUE")
        if key in INSTEAD:
            raise UserError(f"set: give --{INSTEAD[key]} instead of {key}")
        overrides[key] = value
    return overrides
