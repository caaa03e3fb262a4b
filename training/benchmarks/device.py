"""Benchmark of a device: updates, encoding and evaluation at a given size, with random weights, in limited time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.state import AcceleratorState
from accelerate.utils.memory import clear_device_cache
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from csezoo.modeling import METHODS

from ..environment import default_device, progress_bar
from ..errors import UserError
from ..evaluation.suites import encode_once
from ..evaluation.tasks.sts import PairTask
from ..quickstart.base import SPECIAL_TOKENS
from ..recipes import load_recipe
from .race import seconds_of
from .training import Updates, matmul_rate, operations

NAMES = {"diffaug": "diffaug-bert-base-uncased-semi", "diffcse": "diffcse-bert-base-uncased-sts"}
RECIPES = {
    name: NAMES.get(name, f"{name.replace('_', '-')}-bert-base-uncased")
    for name in dict.fromkeys(["simcse", "promptbert", *METHODS])
}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 400},
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "vocab_size": 30522},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 30522},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 30522},
}
CHARACTERS = [*"abcdefghijklmnopqrstuvwxyz", *".,:;!?'()-", '"']
PRECISIONS = ("bf16", "fp16", "no")
WARM = 3  # updates before those that are timed
# To encode, by the size of the encoder; and pairs of an evaluation, as many as STS-B dev has.
TO_ENCODE, TO_COMPARE = {"tiny": 1_000, "small": 20_000, "base": 20_000, "large": 10_000}, 1_500


@dataclass(frozen=True)
class Setting:
    """What is built once: a method with its batch, in one precision. The first of a benchmark matter most."""

    method: str
    batch_size: int
    precision: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.method}, {self.batch_size} sentences, {self.precision}{', compiled' if self.compiled else ''}"


def settings(
    methods: Sequence[str], batch_sizes: Sequence[int], precisions: Sequence[str], compiled: bool = True
) -> list[Setting]:
    """Return all settings, those that matter most first; see `benchmark_device`.

    Example:
        >>> [str(setting) for setting in settings(["simcse", "l2pcsr"], [64], ["bf16"])][:2]
        ['simcse, 64 sentences, bf16', 'l2pcsr, 64 sentences, bf16']
    """
    first, fastest, *others = methods[0], precisions[0], *precisions[1:]
    chosen = [Setting(first, size, fastest) for size in batch_sizes]
    chosen += [Setting(method, batch_sizes[-1], fastest) for method in methods]
    chosen += [Setting(first, batch_sizes[-1], fastest, compiled=True)] * compiled
    chosen += [Setting(method, size, fastest) for size, method in product(batch_sizes, methods)]
    chosen += [Setting(first, size, precision) for precision, size in product(others, batch_sizes)]
    chosen += [Setting(method, size, fastest, True) for method, size in product(methods, batch_sizes)] * compiled
    chosen += [Setting(method, batch_sizes[-1], precision) for precision, method in product(others, methods)]
    return list(dict.fromkeys(chosen))


def benchmark_device(
    *,
    size: str = "base",
    methods: Sequence[str] = (),
    batch_sizes: Sequence[int] = (64, 512),
    precisions: Sequence[str] | None = None,
    compiled: bool = True,
    steps: int = 10,
    seconds: float = 240,
    keep: Callable[[dict[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Measure updates of every method, padded, packed and compiled (which computes padding), encoding and evaluation.

    Weights and words are random, which changes no time. A recipe has the keys of its paper, but for the batch. When
    the time is over, no new setting begins, and the report names those that are left.

    Args:
        methods: of `RECIPES`, the most important one first; all by default.
        batch_sizes, precisions: to try; the first precision is tried with everything. By default, all precisions that
            the device has.
        keep: called with the report after each setting, so that nothing is lost if something stops the benchmark.

    Returns:
        `updates`: for each setting and `layout` (`padded`, `packed`, `compiled`) the updates and sentences per second,
        the seconds of 10^6 sentences, and the peak memory of the GPU; if packed, also R, the ratio to the bare passes
        of the encoders, and `share`, the operations per second as a share of those of a large matrix product.
        `encoding` in sentences per second, and the seconds of an `evaluation`; what is `left`, what has `failed`.
    """
    on_gpu = default_device().type == "cuda"
    precisions = precisions or (PRECISIONS if on_gpu else ("no", "bf16"))
    methods = methods or list(RECIPES)
    if unknown := [method for method in methods if method not in RECIPES]:
        raise UserError(f"methods: {unknown[0]!r} must be one of {', '.join(RECIPES)}")
    if "fp16" in precisions and not on_gpu:
        raise UserError("precisions: fp16 needs a GPU; give bf16 or no")
    end = time.monotonic() + seconds
    planned = settings(methods, batch_sizes, precisions, compiled)
    report: dict[str, Any] = {"size": size, "steps": steps, "updates": [], "failed": {}}
    report |= {"encoding": {}, "evaluation": None, "left": [str(setting) for setting in planned]}
    with TemporaryDirectory() as directory, progress_bar(len(planned), "settings") as bar:
        files = write_files(Path(directory), size, (WARM + steps) * max(batch_sizes))
        for number, setting in enumerate(planned):
            if time.monotonic() > end:
                break
            try:
                for figures in measure(setting, files, steps):
                    report["updates"].append({**vars(setting), **figures})
            except RuntimeError as error:  # too little memory, or a compiler that cannot do it
                report["failed"][str(setting)] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            clear_device_cache(garbage_collection=True)  # also of what a setting without enough memory took
            if number == len(batch_sizes) - 1:  # the main figures of training are there
                report |= measure_encoding(files, size)
            report["left"].remove(str(setting))
            bar.update()
            if keep:
                keep(report)
    return report


def write_files(directory: Path, size: str, rows: int) -> dict[str, str]:
    """Write a base model, a generator of half as many layers, sentences and labelled triplets; return the paths."""
    write_base(directory / "base", size)
    write_base(directory / "generator", size, layers=max(1, SIZES[size]["num_hidden_layers"] // 2))
    (directory / "sentences.txt").write_text("\n".join(sentences(rows, size)) + "\n", encoding="utf-8")
    few = sentences(6, size)
    triplets = [",".join(few[:3]), ",".join(few[3:])]
    (directory / "triplets.csv").write_text("\n".join(["sent0,sent1,hard_neg", *triplets]) + "\n", encoding="utf-8")
    names = {"base_model": "base", "generator": "generator", "train_file": "sentences.txt", "nli_file": "triplets.csv"}
    return {key: str(directory / name) for key, name in names.items()}


def prepare(setting: Setting, files: dict[str, str], steps: int) -> Updates:
    """Build the updates of a setting."""
    AcceleratorState._reset_state()  # it keeps the first precision that a process asks for
    name = RECIPES[setting.method]
    own = load_recipe(name)
    keys: dict[str, Any] = {key: files[key] for key in ("base_model", "train_file")}
    keys |= {"generator": files["generator"]} if own.generator else {}
    if own.nli_steps or own.nli_epochs:
        keys |= {"nli_file": files["nli_file"], "nli_steps": 1, "nli_decay_steps": 2}
    keys |= {"mixed_precision": setting.precision, "batch_size": setting.batch_size, "eval_data": "none"}
    keys |= {"gradient_accumulation_steps": 1, "report_to": "none", "patience": None, "text_columns": None}
    return Updates(load_recipe(name, keys), WARM + steps, setting.compiled)


def measure(setting: Setting, files: dict[str, str], steps: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of a setting for each layout."""
    updates = prepare(setting, files, steps)
    on_gpu = updates.accelerator.device.type == "cuda"
    for layout in ["compiled"] if setting.compiled else ["padded", "packed"]:
        compiling = {}
        if layout == "compiled":
            torch._dynamo.reset()  # it compiles nothing again after eight models
            compiling = {"compiling": seconds_of(updates.run)}
        else:
            updates.built.model.compute_padding(layout == "padded")
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        seconds = updates.time(warm=WARM) / steps
        figures = {
            "layout": layout,
            **compiling,
            "updates per second": 1 / seconds,
            "sentences per second": setting.batch_size / seconds,
            "seconds for 10^6 sentences": 1e6 * seconds / setting.batch_size,
            "padding computed": updates.padding_tokens / (WARM + steps),
            "peak bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        }
        if layout == "packed":
            figures |= against_passes(updates, seconds)
        yield figures


def against_passes(updates: Updates, seconds: float) -> dict[str, Any]:
    """Return R, the time of an update against that of its bare encoder passes, and its operations per second."""
    batches = list(updates.batches())[:4]
    passes = updates.needed_passes(batches)
    updates.run_passes(passes)  # the first run is the slowest
    bare = seconds_of(partial(updates.run_passes, passes)) / len(batches)
    counted = operations(lambda: updates.run_passes(passes[:1]))
    share = counted / seconds / matmul_rate(updates.accelerator)
    return {"R": seconds / bare, "share": share}


def measure_encoding(files: dict[str, str], size: str) -> dict[str, Any]:
    """Return texts per second of `encode` in float32 and bf16, and the seconds of an evaluation as in training."""
    built = prepare(Setting("simcse", 2, "no"), files, 1).built
    serving, tokenizer = built.model.serving_model().eval(), built.serving_tokenizer
    texts = sentences(TO_ENCODE[size], size, seed=1)
    pairs = list(zip(*(sentences(TO_COMPARE, size, seed=seed) for seed in (2, 3)), strict=True))
    task = PairTask("pairs", pairs, [float(number % 6) for number in range(TO_COMPARE)], "random")

    def encode(some: list[str]) -> Any:
        return serving.encode(some, tokenizer, batch_size=128)

    figures: dict[str, Any] = {"encoding": {}}
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        serving.to(dtype)
        encode(texts[:200])
        figures["encoding"][precision] = len(texts) / seconds_of(lambda: encode(texts))
        if precision == "float32":
            figures["evaluation"] = seconds_of(lambda: task.results(encode_once(encode, [task])))
    return figures


def write_base(directory: Path, size: str, layers: int | None = None) -> None:
    """Write a BERT with random weights, and a tokenizer that reads each word of `sentences` as one piece."""
    sizes = SIZES[size] | ({"num_hidden_layers": layers} if layers else {})
    pieces = [*SPECIAL_TOKENS, *CHARACTERS, *(f"##{character}" for character in CHARACTERS)]
    pieces += [f"w{number}" for number in range(sizes["vocab_size"] - len(pieces))]
    config = BertConfig(**sizes, intermediate_size=4 * sizes["hidden_size"], pad_token_id=0)
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(directory)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=512).save_pretrained(directory)


def sentences(number: int, size: str, seed: int = 0) -> list[str]:
    """Return sentences of random words, with lengths as in Wikipedia: log-normal, median 24."""
    draw = random.Random(seed)
    words = SIZES[size]["vocab_size"] - len(SPECIAL_TOKENS) - 2 * len(CHARACTERS)
    lengths = (min(200, max(3, round(draw.lognormvariate(3.18, 0.44)))) for _ in range(number))
    return [" ".join(f"w{draw.randrange(words)}" for _ in range(length)) for length in lengths]
