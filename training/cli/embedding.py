"""The command that makes embeddings: encode."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..environment import quiet_transformers
from ..errors import UserError
from .options import Command, add_encoder_options, check_batch_size


def add_commands(command: Command) -> None:
    added = command(
        "encode",
        encode,
        "embed the texts of a file, of any size, into Parquet or safetensors; interrupted, the same command goes on "
        "(on more processes: accelerate launch -m csezoo.training.cli encode ...)",
        "csezoo encode runs/quickstart/best sentences.txt.gz --to embeddings",
    )
    add_encoder_options(added)
    files = "text (a row a line), CSV, TSV or JSON Lines (.gz too), or Parquet"
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


def encode(options: argparse.Namespace) -> None:
    from accelerate import Accelerator

    from ..embedding.embed import embed_file
    from ..evaluation.encoders import load_encoder
    from ..loop.distributed.launch import check_launch

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
