"""The command that times parts of the zoo: benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..environment import quiet_transformers
from .options import Command, check_out, check_picture

if TYPE_CHECKING:
    from ..recipes import Recipe


def add_commands(command: Command) -> None:
    added = command(
        "benchmark",
        None,
        "time a part of the zoo against the usual way to do the same, or watch what it costs",
        "csezoo benchmark sts --model runs/quickstart/best --data SentEval/data",
    )
    kinds = added.add_subparsers(required=True, metavar="WHAT")

    def kind(name: str, run: Callable, summary: str, repeated: bool = True, **options: Any) -> argparse.ArgumentParser:
        chosen = kinds.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        chosen.set_defaults(run=run, **options)
        chosen.add_argument("--out", metavar="FILE", help="write the JSON report here")
        if repeated:
            chosen.add_argument("--repeats", type=int, default=5, help="turns (5)")
        return chosen

    def of_encoding(chosen: argparse.ArgumentParser) -> None:
        chosen.add_argument(
            "--model", required=True, help="directory or Hub id, of the zoo or of transformers (--pooling)"
        )
        chosen.add_argument("--pooling", help="for a plain transformers encoder")

    chosen = kind("sts", sts, "the suite sts against the way that SentEval encodes it")
    of_encoding(chosen)
    chosen.add_argument("--data", required=True, metavar="DIR", help="a directory in SentEval's layout")
    chosen.add_argument("--tasks", nargs="+", metavar="TASK", help="of the suite; all unless given")
    chosen = kind("encode", encode, "encode against that of sentence-transformers")
    of_encoding(chosen)
    chosen.add_argument("--texts", metavar="FILE", help="as of encode; 2,000 made sentences unless given")

    def of_training(name: str, run: Callable, summary: str, steps: int, **options: Any) -> argparse.ArgumentParser:
        summary = f"{summary}; other keys are the recipe's: --batch_size 64 …"
        chosen = kind(name, run, summary, takes_keys=True, **options)
        chosen.add_argument("recipe", metavar="RECIPE", help="as of train")
        chosen.add_argument("--steps", type=int, default=steps, help=f"updates of a run ({steps})")
        return chosen

    of_training("training", training, "updates against the encoder passes that their mathematics needs", 5)
    of_training("trainer", trainer, "SimCSE against the trainer of sentence-transformers", 25)
    summary = "training rows per second along batch size, length, processes and inner steps"
    chosen = of_training("scaling", scaling, summary, 5)
    chosen.add_argument("--axes", nargs="+", default=[], metavar="AXIS", help="some of them")
    chosen.add_argument("--picture", metavar="FILE.png", help="draw them here")
    summary = "memory and open files of a long run, then of encoding a long file"
    chosen = of_training("soak", soak, summary, 3000, repeated=False)
    chosen.add_argument("--lines", type=int, default=1_000_000, help="of the file (1000000)")
    chosen.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="between two looks (1)")
    chosen.add_argument("--picture", metavar="FILE.png", help="draw them here")


def sts(options: argparse.Namespace) -> None:
    from ..benchmarks.sts import benchmark_sts

    chosen = {"tasks": options.tasks} if options.tasks else {}
    repeats = options.repeats
    _report(options, benchmark_sts, options.model, options.pooling, options.data, repeats=repeats, **chosen)


def encode(options: argparse.Namespace) -> None:
    from ..benchmarks.encoding import benchmark_encoding

    _report(options, benchmark_encoding, options.model, options.pooling, options.texts, repeats=options.repeats)


def training(options: argparse.Namespace) -> None:
    from ..benchmarks.training import benchmark_training

    _report(options, benchmark_training, _recipe(options), steps=options.steps, repeats=options.repeats)


def trainer(options: argparse.Namespace) -> None:
    from ..benchmarks.trainer import benchmark_trainer

    _report(options, benchmark_trainer, _recipe(options), steps=options.steps, repeats=options.repeats)


def scaling(options: argparse.Namespace) -> None:
    from ..benchmarks.scaling import benchmark_scaling
    from ..pictures.benchmarks import draw_scaling

    if options.picture:
        check_picture(options.picture)
    chosen = {"axes": options.axes, "steps": options.steps, "repeats": options.repeats}
    report = _report(options, benchmark_scaling, _recipe(options), **chosen)
    if options.picture:
        draw_scaling(report["axes"], options.picture)


def soak(options: argparse.Namespace) -> None:
    from ..benchmarks.soak import benchmark_soak
    from ..pictures.benchmarks import draw_soak

    if options.picture:
        check_picture(options.picture)
    chosen = {"steps": options.steps, "lines": options.lines, "every": options.every}
    report = _report(options, benchmark_soak, _recipe(options), **chosen)
    if options.picture:
        draw_soak(report["programs"], options.picture)


def _recipe(options: argparse.Namespace) -> Recipe:
    from ..recipes import load_recipe, parse_overrides

    return load_recipe(options.recipe, {"report_to": "none", **parse_overrides(options.keys)})


def _report(options: argparse.Namespace, benchmark: Callable[..., dict], *arguments: Any, **chosen: Any) -> dict:
    from ..benchmarks.race import format_benchmark
    from ..files import write_json

    if options.out:
        check_out(options.out)
    quiet_transformers()
    report = {"command": options.command, **benchmark(*arguments, **chosen)}
    print(format_benchmark(report))
    if options.out:
        write_json(Path(options.out), report)
    return report
