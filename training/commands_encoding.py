"""Commands that make embeddings, and time it: encode, benchmark."""

from __future__ import annotations

import sys
from pathlib import Path

from .commands import Command, add_encoder_options, check_batch_size, check_out, quiet_transformers
from .errors import UserError


def add_commands(command: Command) -> None:
    added = command(
        "encode",
        encode,
        "embed the texts of a file, of any size, into Parquet or safetensors; interrupted, the same command goes on "
        "(on more processes: accelerate launch -m csezoo.training.cli encode ...)",
        "csezoo encode runs/quickstart/best sentences.txt.gz --to embeddings",
    )
    add_encoder_options(added)
    files = "text (a row a line), CSV, TSV, JSON Lines or Parquet, .gz too"
    added.add_argument("file", metavar="FILE", help=files)
    added.add_argument(
        "--to", required=True, metavar="DIR", help="a new directory, or one that this command has begun"
    )
    added.add_argument("--column", help="that holds the texts: text, or the only one, unless given")
    added.add_argument("--normalize", action="store_true", help="scale every embedding to length one")
    added.add_argument(
        "--format",
        default="parquet",
        choices=("parquet", "safetensors"),
        help="parquet (default; row, text, embedding) or safetensors (row, embedding)",
    )
    added.add_argument("--shard_size", type=int, default=10_000, help="rows a file, and rows in memory (10000)")
    added = command(
        "benchmark",
        benchmark,
        "time a part of the zoo against the usual way to do the same, in turns, and report the ratio",
        "csezoo benchmark sts --model runs/quickstart/best --data SentEval/data",
    )
    added.add_argument(
        "what",
        choices=("sts", "encode"),
        help="the suite sts against the way that SentEval encodes it; encode against sentence-transformers",
    )
    added.add_argument("--model", required=True, help="as of evaluate")
    added.add_argument("--data", metavar="DIR", help="sts: a directory in SentEval's layout")
    added.add_argument("--texts", metavar="FILE", help="encode: as of encode; 2,000 made sentences unless given")
    added.add_argument("--pooling", help="for a plain transformers encoder")
    added.add_argument("--tasks", nargs="+", metavar="TASK", help="sts: of the suite; all unless given")
    added.add_argument("--repeats", type=int, default=5, help="turns (5)")
    added.add_argument("--out", metavar="FILE", help="write the JSON report here")


def encode(options) -> None:
    from accelerate import Accelerator

    from .embedding import embed_file
    from .encoders import load_encoder
    from .launch import check_launch

    check_batch_size(options.batch_size)
    if options.shard_size < 1:
        raise UserError(f"shard_size: {options.shard_size} must be at least 1")
    quiet_transformers()
    accelerator = Accelerator()  # before the model is loaded: it gives each process its device
    check_launch(accelerator.num_processes)
    progress = sys.stderr.isatty() and accelerator.is_main_process
    encoder, receipt = load_encoder(
        options.model, pooling=options.pooling, batch_size=options.batch_size, dtype=options.dtype, progress=progress
    )
    rows, shards = embed_file(
        encoder,
        {"model": options.model, **receipt},
        options.file,
        Path(options.to),
        column=options.column,
        normalize=options.normalize,
        file_format=options.format,
        shard_size=options.shard_size,
        progress=progress,
    )
    if accelerator.is_main_process:
        print(f"{options.to}: {rows:,} embeddings in {shards:,} files")
    accelerator.end_training()


def benchmark(options) -> None:
    import json

    from .benchmarks import benchmark_sts, format_benchmark
    from .encoding_benchmark import benchmark_encoding

    quiet_transformers()
    if options.out:
        check_out(options.out)
    if options.what == "sts":
        if options.data is None:
            raise UserError("data: benchmark sts needs --data, a directory in SentEval's layout")
        chosen = {"tasks": options.tasks} if options.tasks else {}
        measured = benchmark_sts(options.model, options.pooling, options.data, repeats=options.repeats, **chosen)
    else:
        measured = benchmark_encoding(options.model, options.pooling, options.texts, repeats=options.repeats)
    report = {"command": options.command, **measured}
    print(format_benchmark(report))
    if options.out:
        Path(options.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
