"""The command that measures speed and memory: benchmark."""

from __future__ import annotations

import argparse
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ..environment import keep_freed_memory, quiet_transformers
from ..evaluation.tasks.names import STS_TASKS
from .options import SENTEVAL, Command, refuse_unwritable, refuse_unwritable_picture, whole

WING = "csezoo.training.benchmarks"
# Options that several benchmarks have.
REPEATS, MODEL, RECIPE = (argparse.ArgumentParser(add_help=False) for _ in range(3))
REPEATS.add_argument("--repeats", type=whole(), default=5, help="how often each side is timed (default: 5)")
MODEL.add_argument(
    "--model", required=True, help="directory or Hub id: a model of the zoo, or a transformers encoder with --pooling"
)
MODEL.add_argument("--pooling", help="pooling of a plain transformers encoder, such as cls or mean")
RECIPE.add_argument("recipe", metavar="RECIPE", help="name of a recipe, or a YAML file")


def add_commands(command: Command) -> None:
    added = command(
        "benchmark",
        run,
        "time a part of the zoo against the usual way to do the same work, or record how much memory it uses",
        "csezoo benchmark sts --model runs/quickstart/best --data SentEval/data",
    )
    added.set_defaults(recipe_keys={}, picture=None, keeps_freed_memory=False)
    kinds = added.add_subparsers(required=True, metavar="BENCHMARK")

    def kind(
        name: str,
        benchmark: str,
        summary: str,
        example: str,
        *shared: argparse.ArgumentParser,
        steps: int | None = None,
        **settings: Any,
    ) -> argparse.ArgumentParser:
        """Add a benchmark, a function of this wing. Its options have the names of the function's parameters.

        Args:
            steps: default of `--steps`; None for a benchmark that has no such option.
            settings: how `run` calls it, where that is not the default of `csezoo benchmark`.
        """
        takes_keys = RECIPE in shared
        summary += "; keys of the recipe can follow, such as --batch_size 64" if takes_keys else ""
        chosen = kinds.add_parser(name, help=summary, parents=shared, allow_abbrev=False)
        chosen.description, chosen.epilog = summary, f"example: csezoo benchmark {name} {example}"
        chosen.set_defaults(kind=name, benchmark=benchmark, takes_keys=takes_keys, **settings)
        if steps is not None:
            chosen.add_argument(
                "--steps", type=whole(), default=steps, help=f"optimizer steps of a run (default: {steps})"
            )
        chosen.add_argument("--out", metavar="FILE", help="write the report to this JSON file")
        return chosen

    chosen = kind(
        "sts",
        "encoding:benchmark_sts",
        "time the suite sts against encoding it the way SentEval does",
        "--model runs/quickstart/best --data SentEval/data",
        MODEL,
        REPEATS,
    )
    chosen.add_argument("--data", required=True, metavar="DIR", help="a directory in SentEval's layout")
    chosen.add_argument(
        "--tasks", nargs="+", metavar="TASK", default=STS_TASKS, help="tasks of the suite (default: all)"
    )
    splits = "what SentEval's side encodes: test, or also train and dev, as SentEval does (default: test)"
    chosen.add_argument("--splits", choices=["test", "all"], default="test", help=splits)
    chosen = kind(
        "encode",
        "encoding:benchmark_encoding",
        "time encode() of csezoo against encode() of sentence-transformers",
        "--model runs/quickstart/best --texts sentences.txt",
        MODEL,
        REPEATS,
    )
    texts = "file to encode, in any format that `csezoo encode` reads (default: 2,000 generated sentences)"
    chosen.add_argument("--texts", metavar="FILE", help=texts)

    chosen = kind(
        "short",
        "short_vectors:benchmark_short_vectors",
        "score truncated and quantised vectors against the complete ones, on the suites sts and retrieval",
        "--models plain=runs/a/best matryoshka=runs/b/best --data SentEval/data --picture short.png",
        draws=("draw_short_vectors", "points"),
    )
    models = "a label and a directory or Hub id, as for evaluate; scores of models with the same label are averaged"
    chosen.add_argument("--models", nargs="+", required=True, type=labelled, metavar="LABEL=MODEL", help=models)
    chosen.add_argument("--pooling", help="pooling of plain transformers encoders, such as cls or mean")
    chosen.add_argument("--data", **SENTEVAL)
    dims = "lengths to cut the vectors to, where they are longer (default: 128 64 32)"
    chosen.add_argument("--dims", nargs="+", type=whole(), default=[128, 64, 32], metavar="K", help=dims)
    chosen.add_argument("--picture", metavar="FILE.png", help="draw quality against bytes to this file")

    kind(
        "training",
        "training:benchmark_training",
        "time optimizer steps against the encoder passes that the method needs",
        "simcse-bert-base-uncased --train_file sentences.txt",
        RECIPE,
        REPEATS,
        steps=5,
        keeps_freed_memory=True,
    )
    kind(
        "memory",
        "training:benchmark_memory",
        "measure the peak memory of optimizer steps against that of the encoder passes that the method needs",
        "l2pcsr-bert-base-uncased --train_file sentences.txt",
        RECIPE,
        steps=1,
    )
    kind(
        "trainer",
        "trainer:benchmark_trainer",
        "time SimCSE training against the trainer of sentence-transformers",
        "simcse-bert-base-uncased --projection none --train_file sentences.txt",
        RECIPE,
        REPEATS,
        steps=25,
    )
    kind(
        "losses",
        "trainer:benchmark_losses",
        "time a method's loss in the trainer of sentence-transformers against the zoo's own loop",
        "diffcse-bert-base-uncased-sts --train_file sentences.txt",
        RECIPE,
        REPEATS,
        steps=20,
        keeps_freed_memory=True,
    )
    chosen = kind(
        "scaling",
        "programs:benchmark_scaling",
        "measure training rows per second while batch size, length, processes or inner steps grow",
        "simcse-bert-base-uncased --train_file sentences.txt --axes batch_size --picture scaling.png",
        RECIPE,
        REPEATS,
        steps=5,
        draws=("draw_scaling", "axes"),
    )
    axes = "what to vary: batch_size, max_length, processes, inner_steps (default: all that the method has)"
    chosen.add_argument("--axes", nargs="+", default=[], metavar="AXIS", help=axes)
    chosen.add_argument("--picture", metavar="FILE.png", help="draw the speeds to this file")
    chosen = kind(
        "soak",
        "programs:benchmark_soak",
        "record memory and open files of a long run, then of encoding a long file",
        "simcse-bert-base-uncased --train_file sentences.txt --picture soak.png",
        RECIPE,
        steps=3000,
        draws=("draw_soak", "programs"),
    )
    lines = "lines of the file (default: 1000000)"
    chosen.add_argument("--lines", type=whole(), default=1_000_000, help=lines)
    seconds = "seconds between two samples (default: 1)"
    chosen.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help=seconds)
    chosen.add_argument("--picture", metavar="FILE.png", help="draw memory and open files to this file")
    chosen = kind(
        "start",
        "programs:benchmark_start",
        "measure the time and memory from the command to the first update, on a long file",
        "simcse-bert-base-uncased --train_file sentences.txt --eval_data none",
        RECIPE,
    )
    chosen.add_argument("--lines", type=whole(), default=1_000_000, help=lines)
    chosen = kind(
        "stream",
        "streaming:benchmark_stream",
        "time how fast batches of a stream are read, and how fast a resumed run finds its place again",
        "simcse-bert-base-uncased --dataset shards --dataset_file '*.parquet'",
        RECIPE,
        REPEATS,
        recipe_keys={"streaming": True, "max_steps": 1},
    )
    chosen.add_argument("--batches", type=whole(), default=10_000, help="batches to read (default: 10000)")
    kind(
        "epoch",
        "epoch:benchmark_epoch",
        "divide the time of an update into products, elementwise operators, host, data and checkpoint, and project an "
        "epoch of a million sentences",
        "simcse-bert-base-uncased --train_file sentences.txt",
        RECIPE,
        steps=10,
        keeps_freed_memory=True,
    )
    chosen = kind(
        "device",
        "device:benchmark_device",
        "measure updates of every method, padded, packed and compiled, encoding and an evaluation on this device, in "
        "limited time, with random weights and sentences",
        "--size base --seconds 240 --out device.json",
        steps=10,
        keeps_freed_memory=True,
    )
    chosen.add_argument(
        "--size", choices=["tiny", "small", "base", "large"], default="base", help="of the encoder (default: base)"
    )
    chosen.add_argument(
        "--methods", nargs="+", default=[], metavar="METHOD", help="the most important first (default: all)"
    )
    sizes = "sentences in a batch (default: 64 512)"
    chosen.add_argument("--batch_sizes", nargs="+", type=whole(2), default=[64, 512], metavar="N", help=sizes)
    precisions = "bf16, fp16 or no; the first is measured with everything (default: all that the device has)"
    chosen.add_argument("--precisions", nargs="+", metavar="P", choices=["bf16", "fp16", "no"], help=precisions)
    chosen.add_argument("--eager", action="store_false", dest="compiled", help="compile nothing")
    seconds = "after this time nothing new begins (default: 240)"
    chosen.add_argument("--seconds", type=float, default=240.0, help=seconds)
    chosen = kind(
        "serving",
        "serving:benchmark_serving",
        "measure the size and the processor time per sentence of every model in the index of the cards, with random "
        "weights",
        "--out model_cards/serving.json",
        REPEATS,
    )
    cards = "directory of the cards (default: model_cards)"
    chosen.add_argument("--cards", default="model_cards", metavar="DIR", help=cards)
    bases = "directories of base models that are not on the Hub, for the runs that were trained from them"
    chosen.add_argument("--bases", nargs="+", default=[], metavar="DIR", help=bases)


def labelled(word: str) -> tuple[str, str]:
    """Return the two parts of LABEL=MODEL: a type of argparse."""
    label, equals, model = word.partition("=")
    if not (label and equals and model):
        raise argparse.ArgumentTypeError(f"{word!r} is not LABEL=MODEL; give a label, such as plain={word}")
    return label, model


def run(options: argparse.Namespace) -> None:
    """Call a benchmark with the options that it has parameters for; print, write and draw its report."""
    from ..files import write_json
    from ..recipes import load_recipe, parse_overrides

    if options.out:
        refuse_unwritable(options.out)
    if options.picture:
        refuse_unwritable_picture(options.picture, "picture")

    def keep(report: dict[str, Any]) -> dict[str, Any]:
        """Return a report with what was measured where, written to `--out`."""
        on = {"machine": {**machine(), **report.get("machine", {})}}
        complete = {"command": options.command, "benchmark": options.kind, **report, **on}
        if options.out:
            write_json(Path(options.out), complete)
        return complete

    given = {**vars(options), "keep": keep}
    if options.takes_keys:
        keys = {"report_to": "none", **options.recipe_keys, **parse_overrides(options.keys)}
        given["recipe"] = load_recipe(options.recipe, keys)
    from ..benchmarks.race import format_benchmark, machine  # imports torch: a wrong recipe is refused before

    if options.takes_keys:
        from ..loading.served_encoder import follow_base

        given["recipe"], _ = follow_base(given["recipe"])  # as a run does
    benchmark = resolve_name(f"{WING}.{options.benchmark}")
    if options.keeps_freed_memory:  # as a run does
        keep_freed_memory()
    quiet_transformers()
    report = keep(benchmark(**{name: given[name] for name in signature(benchmark).parameters if name in given}))
    print(format_benchmark(report))
    if options.picture:
        function, part = options.draws
        resolve_name(f"csezoo.training.pictures.benchmarks:{function}")(report[part], options.picture)
