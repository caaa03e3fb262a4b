"""The command that measures speed and memory: benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..environment import keep_freed_memory, quiet_transformers
from ..errors import UserError
from .options import SENTEVAL, Command, refuse_unwritable, refuse_unwritable_picture

if TYPE_CHECKING:
    from ..recipes import Recipe


def add_commands(command: Command) -> None:
    added = command(
        "benchmark",
        None,
        "time a part of the zoo against the usual way to do the same work, or record how much memory it uses",
        "csezoo benchmark sts --model runs/quickstart/best --data SentEval/data",
    )
    kinds = added.add_subparsers(required=True, metavar="BENCHMARK")

    def kind(name: str, run: Callable, summary: str, example: str, **options: Any) -> argparse.ArgumentParser:
        example = f"example: csezoo benchmark {name} {example}"
        chosen = kinds.add_parser(name, help=summary, description=summary, epilog=example, allow_abbrev=False)
        chosen.set_defaults(run=run, **options)
        chosen.add_argument("--out", metavar="FILE", help="write the report to this JSON file")
        return chosen

    def add_repeats(chosen: argparse.ArgumentParser) -> None:
        chosen.add_argument("--repeats", type=int, default=5, help="how often each side is timed (default: 5)")

    def add_model(chosen: argparse.ArgumentParser) -> None:
        models = "directory or Hub id: a model of the zoo, or a transformers encoder with --pooling"
        chosen.add_argument("--model", required=True, help=models)
        chosen.add_argument("--pooling", help="pooling of a plain transformers encoder, such as cls or mean")

    chosen = kind(
        "sts",
        sts,
        "time the suite sts against encoding it the way SentEval does",
        "--model runs/quickstart/best --data SentEval/data",
    )
    add_repeats(chosen)
    add_model(chosen)
    chosen.add_argument("--data", required=True, metavar="DIR", help="a directory in SentEval's layout")
    chosen.add_argument("--tasks", nargs="+", metavar="TASK", help="tasks of the suite (default: all)")
    splits = "what SentEval's side encodes: test, or also train and dev, as SentEval does (default: test)"
    chosen.add_argument("--splits", choices=["test", "all"], default="test", help=splits)
    chosen = kind(
        "encode",
        encode,
        "time encode() of csezoo against encode() of sentence-transformers",
        "--model runs/quickstart/best --texts sentences.txt",
    )
    add_repeats(chosen)
    add_model(chosen)
    texts = "file to encode, in any format that `csezoo encode` reads (default: 2,000 generated sentences)"
    chosen.add_argument("--texts", metavar="FILE", help=texts)

    chosen = kind(
        "short",
        short,
        "score truncated and quantised vectors against the complete ones, on the suites sts and retrieval",
        "--models plain=runs/a/best matryoshka=runs/b/best --data SentEval/data --picture short.png",
    )
    models = "a label and a directory or Hub id, as for evaluate; scores of models with the same label are averaged"
    chosen.add_argument("--models", nargs="+", required=True, metavar="LABEL=MODEL", help=models)
    chosen.add_argument("--pooling", help="pooling of plain transformers encoders, such as cls or mean")
    chosen.add_argument("--data", **SENTEVAL)
    dims = "lengths to cut the vectors to, where they are longer (default: 128 64 32)"
    chosen.add_argument("--dims", nargs="+", type=int, default=[128, 64, 32], metavar="K", help=dims)
    chosen.add_argument("--picture", metavar="FILE.png", help="draw quality against bytes to this file")

    def training_kind(name: str, run: Callable, summary: str, example: str, steps: int) -> argparse.ArgumentParser:
        summary = f"{summary}; keys of the recipe can follow, such as --batch_size 64"
        chosen = kind(name, run, summary, example, takes_keys=True)
        chosen.add_argument("recipe", metavar="RECIPE", help="name of a recipe, or a YAML file")
        chosen.add_argument("--steps", type=int, default=steps, help=f"optimizer steps of a run (default: {steps})")
        return chosen

    chosen = training_kind(
        "training",
        training,
        "time optimizer steps against the encoder passes that the method needs",
        "simcse-bert-base-uncased --train_file sentences.txt",
        5,
    )
    add_repeats(chosen)
    training_kind(
        "memory",
        memory,
        "measure the peak memory of optimizer steps against that of the encoder passes that the method needs",
        "l2pcsr-bert-base-uncased --train_file sentences.txt",
        1,
    )
    chosen = training_kind(
        "trainer",
        trainer,
        "time SimCSE training against the trainer of sentence-transformers",
        "simcse-bert-base-uncased --projection none --train_file sentences.txt",
        25,
    )
    add_repeats(chosen)
    chosen = training_kind(
        "losses",
        losses,
        "time a method's loss in the trainer of sentence-transformers against the zoo's own loop",
        "diffcse-bert-base-uncased-sts --train_file sentences.txt",
        20,
    )
    add_repeats(chosen)
    chosen = training_kind(
        "scaling",
        scaling,
        "measure training rows per second while batch size, length, processes or inner steps grow",
        "simcse-bert-base-uncased --train_file sentences.txt --axes batch_size --picture scaling.png",
        5,
    )
    add_repeats(chosen)
    axes = "what to vary: batch_size, max_length, processes, inner_steps (default: all that the method has)"
    chosen.add_argument("--axes", nargs="+", default=[], metavar="AXIS", help=axes)
    chosen.add_argument("--picture", metavar="FILE.png", help="draw the speeds to this file")
    chosen = training_kind(
        "soak",
        soak,
        "record memory and open files of a long run, then of encoding a long file",
        "simcse-bert-base-uncased --train_file sentences.txt --picture soak.png",
        3000,
    )
    chosen.add_argument("--lines", type=int, default=1_000_000, help="lines of the file (default: 1000000)")
    seconds = "seconds between two samples (default: 1)"
    chosen.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help=seconds)
    chosen.add_argument("--picture", metavar="FILE.png", help="draw memory and open files to this file")
    chosen = kind(
        "start",
        start,
        "measure the time and memory from the command to the first update, on a long file; keys of the recipe can "
        "follow",
        "simcse-bert-base-uncased --train_file sentences.txt --eval_data none",
        takes_keys=True,
    )
    chosen.add_argument("recipe", metavar="RECIPE", help="name of a recipe, or a YAML file")
    chosen.add_argument("--lines", type=int, default=1_000_000, help="lines of the file (default: 1000000)")
    chosen = kind(
        "stream",
        stream,
        "time how fast batches of a stream are read, and how fast a resumed run finds its place again; keys of the "
        "recipe can follow",
        "simcse-bert-base-uncased --dataset shards --dataset_file '*.parquet'",
        takes_keys=True,
    )
    add_repeats(chosen)
    chosen.add_argument("recipe", metavar="RECIPE", help="name of a recipe, or a YAML file")
    chosen.add_argument("--batches", type=int, default=10_000, help="batches to read (default: 10000)")
    training_kind(
        "epoch",
        epoch,
        "divide the time of an update into products, elementwise operators, host, data and checkpoint, and project an "
        "epoch of a million sentences",
        "simcse-bert-base-uncased --train_file sentences.txt",
        10,
    )
    chosen = kind(
        "device",
        device,
        "measure updates of every method, padded, packed and compiled, encoding and an evaluation on this device, in "
        "limited time, with random weights and sentences",
        "--size base --seconds 240 --out device.json",
    )
    chosen.add_argument(
        "--size", choices=["tiny", "small", "base", "large"], default="base", help="of the encoder (default: base)"
    )
    chosen.add_argument(
        "--methods", nargs="+", default=[], metavar="METHOD", help="the most important first (default: all)"
    )
    sizes = "sentences in a batch (default: 64 512)"
    chosen.add_argument("--batch_sizes", nargs="+", type=int, default=[64, 512], metavar="N", help=sizes)
    precisions = "bf16, fp16 or no; the first is measured with everything (default: all that the device has)"
    chosen.add_argument("--precisions", nargs="+", metavar="P", help=precisions)
    chosen.add_argument("--eager", action="store_true", help="compile nothing")
    chosen.add_argument("--steps", type=int, default=10, help="updates that are timed (default: 10)")
    seconds = "after this time nothing new begins (default: 240)"
    chosen.add_argument("--seconds", type=float, default=240.0, help=seconds)
    chosen = kind(
        "serving",
        serving,
        "measure the size and the processor time per sentence of every model in the index of the cards, with random "
        "weights",
        "--out model_cards/serving.json",
    )
    add_repeats(chosen)
    cards = "directory of the cards (default: model_cards)"
    chosen.add_argument("--cards", default="model_cards", metavar="DIR", help=cards)
    bases = "directories of base models that are not on the Hub, for the runs that were trained from them"
    chosen.add_argument("--bases", nargs="+", default=[], metavar="DIR", help=bases)


def sts(options: argparse.Namespace) -> None:
    from ..benchmarks.encoding import benchmark_sts

    chosen = {"tasks": options.tasks} if options.tasks else {}
    chosen |= {"splits": options.splits, "repeats": options.repeats}
    _report(options, benchmark_sts, options.model, options.pooling, options.data, **chosen)


def encode(options: argparse.Namespace) -> None:
    from ..benchmarks.encoding import benchmark_encoding

    _report(options, benchmark_encoding, options.model, options.pooling, options.texts, repeats=options.repeats)


def short(options: argparse.Namespace) -> None:
    from ..benchmarks.short_vectors import benchmark_short_vectors
    from ..pictures.benchmarks import draw_short_vectors

    models = []
    for given in options.models:
        label, equals, model = given.partition("=")
        if not (label and equals and model):
            raise UserError(f"models: {given!r} is not LABEL=MODEL; give a label, such as plain={given}")
        models.append((label, model))
    if options.picture:
        refuse_unwritable_picture(options.picture, "picture")
    chosen = {"dims": options.dims, "pooling": options.pooling}
    report = _report(options, benchmark_short_vectors, models, options.data, **chosen)
    if options.picture:
        draw_short_vectors(report["points"], options.picture)


def training(options: argparse.Namespace) -> None:
    recipe = _recipe(options)
    from ..benchmarks.training import benchmark_training

    keep_freed_memory()  # as a run does
    _report(options, benchmark_training, recipe, steps=options.steps, repeats=options.repeats)


def memory(options: argparse.Namespace) -> None:
    recipe = _recipe(options)
    from ..benchmarks.training import benchmark_memory

    _report(options, benchmark_memory, recipe, steps=options.steps)


def trainer(options: argparse.Namespace) -> None:
    recipe = _recipe(options)
    from ..benchmarks.trainer import benchmark_trainer

    _report(options, benchmark_trainer, recipe, steps=options.steps, repeats=options.repeats)


def losses(options: argparse.Namespace) -> None:
    recipe = _recipe(options)
    from ..benchmarks.trainer import benchmark_losses

    keep_freed_memory()  # as a run does
    _report(options, benchmark_losses, recipe, steps=options.steps, repeats=options.repeats)


def scaling(options: argparse.Namespace) -> None:
    from ..benchmarks.programs import benchmark_scaling
    from ..pictures.benchmarks import draw_scaling

    chosen = {"axes": options.axes, "steps": options.steps, "repeats": options.repeats}
    _report_and_draw(options, benchmark_scaling, draw_scaling, "axes", **chosen)


def soak(options: argparse.Namespace) -> None:
    from ..benchmarks.programs import benchmark_soak
    from ..pictures.benchmarks import draw_soak

    chosen = {"steps": options.steps, "lines": options.lines, "every": options.every}
    _report_and_draw(options, benchmark_soak, draw_soak, "programs", **chosen)


def start(options: argparse.Namespace) -> None:
    recipe = _recipe(options)
    from ..benchmarks.programs import benchmark_start

    _report(options, benchmark_start, recipe, lines=options.lines)


def stream(options: argparse.Namespace) -> None:
    recipe = _recipe(options, streaming=True, max_steps=options.batches + 1)
    from ..benchmarks.streaming import benchmark_stream

    _report(options, benchmark_stream, recipe, batches=options.batches, repeats=options.repeats)


def epoch(options: argparse.Namespace) -> None:
    recipe = _recipe(options)
    from ..benchmarks.epoch import benchmark_epoch

    keep_freed_memory()  # as a run does
    _report(options, benchmark_epoch, recipe, steps=options.steps)


def device(options: argparse.Namespace) -> None:
    from ..benchmarks.device import RECIPES, benchmark_device
    from ..files import write_json

    def keep(report: dict) -> None:
        if options.out:
            write_json(Path(options.out), {"command": options.command, **report})

    keep_freed_memory()  # as a run does
    _report(
        options,
        benchmark_device,
        size=options.size,
        methods=options.methods or list(RECIPES),
        batch_sizes=options.batch_sizes,
        precisions=options.precisions,
        compiled=not options.eager,
        steps=options.steps,
        seconds=options.seconds,
        keep=keep,
    )


def serving(options: argparse.Namespace) -> None:
    from ..benchmarks.serving import benchmark_serving

    _report(options, benchmark_serving, options.cards, options.bases, repeats=options.repeats)


def _recipe(options: argparse.Namespace, **keys: Any) -> Recipe:
    """Load the recipe with the given keys, which those of the command line override."""
    from ..recipes import load_recipe, parse_overrides

    return load_recipe(options.recipe, {"report_to": "none", **keys, **parse_overrides(options.keys)})


def _report_and_draw(
    options: argparse.Namespace, benchmark: Callable[..., dict], draw: Callable, part: str, **chosen: Any
) -> None:
    """Report a benchmark of a recipe, and draw a part of its report if `--picture` is given."""
    if options.picture:
        refuse_unwritable_picture(options.picture, "picture")
    report = _report(options, benchmark, _recipe(options), **chosen)
    if options.picture:
        draw(report[part], options.picture)


def _report(options: argparse.Namespace, benchmark: Callable[..., dict], *arguments: Any, **chosen: Any) -> dict:
    from ..benchmarks.race import format_benchmark
    from ..files import write_json

    if options.out:
        refuse_unwritable(options.out)
    if chosen.get("repeats", 1) < 1:
        raise UserError(f"repeats: {chosen['repeats']} must be at least 1")
    quiet_transformers()
    report = {"command": options.command, **benchmark(*arguments, **chosen)}
    print(format_benchmark(report))
    if options.out:
        write_json(Path(options.out), report)
    return report
