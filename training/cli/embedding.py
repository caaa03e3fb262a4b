"""The command that computes embeddings: encode."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..environment import quiet_transformers
from .options import Command, add_encoder_options, whole


def add_commands(command: Command) -> None:
    added = command(
        "encode",
        encode,
        "embed the texts of a file of any size into Parquet or safetensors files; after an interruption, the same "
        "command continues (for several processes: accelerate launch -m csezoo.training.cli encode ...)",
        "csezoo encode runs/quickstart/best sentences.txt.gz --to embeddings",
    )
    add_encoder_options(added)
    files = "plain text (one text per line), CSV, TSV or JSON Lines, each also as .gz, or Parquet"
    added.add_argument("file", metavar="FILE", help=files)
    to = "a new directory, or one in which this command was interrupted"
    added.add_argument("--to", required=True, metavar="DIR", help=to)
    added.add_argument("--column", help="the column with the texts (default: `text`, or the only column)")
    added.add_argument("--normalize", action="store_true", help="scale every embedding to length one")
    truncate_dim = "keep the first K dimensions, for a model trained with matryoshka_dims or whitened"
    added.add_argument("--truncate_dim", type=whole(), metavar="K", help=truncate_dim)
    added.add_argument(
        "--precision",
        default="float32",
        choices=("float32", "int8", "uint8", "binary", "ubinary"),
        help="float32 (default), one byte per dimension (int8, uint8; all files have the ranges of the first one) or "
        "one bit (binary, ubinary), as in sentence-transformers",
    )
    added.add_argument(
        "--format",
        default="parquet",
        choices=("parquet", "safetensors"),
        help="parquet (default; columns row, text, embedding) or safetensors (tensors row, embedding)",
    )
    shard_size = "rows per output file, and rows in memory at a time (default: 10000)"
    added.add_argument("--shard_size", type=whole(), default=10_000, help=shard_size)


def encode(options: argparse.Namespace) -> None:
    from accelerate import Accelerator

    from ..embedding.embed import embed_file
    from ..evaluation.encoders import load_encoder
    from ..loop.distributed.launch import refuse_missing_processes

    quiet_transformers()
    accelerator = Accelerator()  # before the model is loaded: it assigns each process its device
    refuse_missing_processes(accelerator.num_processes)
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
        truncate_dim=options.truncate_dim,
        precision=options.precision,
        file_format=options.format,
        shard_size=options.shard_size,
        progress=progress,
    )
    if accelerator.is_main_process:
        print(f"{options.to}: {rows:,} embeddings in {shards:,} files")
    accelerator.end_training()
