"""The command that makes the papers' tables and figures: reproduce."""

from __future__ import annotations

import argparse
import logging
import shlex
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..environment import quiet_transformers
from ..errors import UserError, terminate
from .options import Command


def add_commands(command: Command) -> None:
    added = command(
        "reproduce",
        reproduce,
        "make a table or a figure of a paper, or list all of them with their state",
        "csezoo reproduce diffaug/table-1 --rows 'DiffAug*' --seeds 1 2 3 --dry-run",
    )
    added.add_argument("item", nargs="?", metavar="PAPER/ITEM", help="a table or figure; without it, list all of them")
    added.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="only these rows; * stands for any text")
    added.add_argument("--seeds", nargs="+", type=int, default=[], metavar="SEED", help="instead of the paper's seeds")
    changed = "set keys of every trained row; the row is then marked as not comparable"
    added.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=changed)
    profile = "put the table on other material: a YAML file with other base models, data, and fewer updates"
    added.add_argument("--profile", metavar="FILE", help=profile)
    added.add_argument("--dry-run", action="store_true", help="print every run with its command and its cost")
    where = "here (default), or slurm: write the script of a job array that trains the missing runs"
    added.add_argument("--on", default="here", choices=("here", "slurm"), help=where)
    options = "options of sbatch in one text, such as '--time=4:00:00 --gres=gpu:1'"
    added.add_argument("--sbatch", metavar="OPTIONS", help=options)
    launcher = "options of accelerate launch in one text, such as '--config_file FILE'"
    added.add_argument("--launch", metavar="OPTIONS", help=launcher)
    out = "directory of the tables and their runs; all tables in it share their runs (default: reproduced)"
    added.add_argument("--out", default="reproduced", metavar="DIR", help=out)
    data = "evaluation data: hub (default), or a directory in SentEval's layout; a profile may name one too"
    added.add_argument("--data", metavar="DIR", help=data)


def reproduce(options: argparse.Namespace) -> None:
    from ..reproducing.manifests import load_item
    from ..reproducing.plan import plan
    from ..reproducing.pooling import pool
    from ..reproducing.profiles import load_profile
    from ..reproducing.reports import describe, list_items, unique_runs
    from ..reproducing.runs import finished, make, train
    from ..reproducing.slurm import write_script
    from ..reproducing.writing import write_item

    out = Path(options.out)
    if options.item is None:
        print(list_items(out))
        return
    item, profile = load_item(options.item), load_profile(options.profile)
    overrides = _overrides(options.set)
    if options.data:
        profile = replace(profile, data=options.data)
    planned = plan(item, out, rows=options.rows, seeds=options.seeds, overrides=overrides, profile=profile)
    if options.dry_run:
        print(describe(item, planned))
        return
    signal.signal(signal.SIGTERM, terminate)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("csezoo").setLevel(logging.INFO)
    quiet_transformers()
    runs, launcher = unique_runs(planned), shlex.split(options.launch or "")
    if options.on == "slurm":
        missing = [run for run in runs if run.recipe and not finished(run, item.columns)]
        if not missing:
            raise UserError(f"{item.name}: no run is missing; omit --on slurm to write the table")
        arguments = shlex.split(options.sbatch or "")
        script = write_script(item.name, missing, out / item.name, launcher=launcher, options=arguments)
        print(f"sbatch {script}\nthen, for the table: the same command without --on slurm")
        return
    failed = make(runs, item.columns, data=profile.data, glue=item.glue, train=partial(train, launcher=launcher))
    lines = [pool(row, item.columns, item.source, failed) for row in planned]
    for path in write_item(item, planned, lines, out / item.name, profile.data):
        print(path)
    if failed:
        where, reason = next(iter(failed.items()))
        raise UserError(f"{len(failed)} of {len(runs)} runs failed, the first is {where}: {reason}")


def _overrides(words: list[str]) -> dict[str, object]:
    overrides: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"set: {word!r} must be KEY=VALUE")
        overrides[key] = value
    return overrides
