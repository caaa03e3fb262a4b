"""Measure the cost of encoding on this machine: time, tokens per second, memory."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from ...environment import default_device, peak_device_bytes, peak_rss_bytes
from ..sentence_vectors import CountingEncoder, SentenceVectors
from .sts import OnPairs

REPEATS = 3  # timed calls, after one call to warm up; the result is their median


@dataclass
class CostTask(OnPairs):
    """The cost of encoding the distinct sentences of the pairs in one call.

    The numbers depend on the machine and on what else it is doing, so they differ from run to run. The vectors are not
    kept for other tasks.
    """

    measured = "cost"

    def sentences(self) -> set[str]:
        return set()  # no vector is looked up, because encoding itself is measured

    def results(self, vectors: SentenceVectors) -> list[dict]:
        """Measure seconds per call, sentences and (if the encoder counts them) tokens per second, and peak memory."""
        encode, texts = vectors.encode, sorted(self.pairs.sentences())
        seconds = []
        for _ in range(REPEATS + 1):
            started = time.perf_counter()
            encode(texts)
            seconds.append(time.perf_counter() - started)
        median = statistics.median(seconds[1:])
        values = {"seconds": median, "sentences per second": len(texts) / median}
        if isinstance(encode, CountingEncoder):
            values["tokens per second"] = encode.count_tokens(texts) / median
        values["peak RSS, GiB"] = peak_rss_bytes() / 2**30
        if (peak := peak_device_bytes(default_device())) is not None:
            values["peak GPU memory, GiB"] = peak / 2**30
        return [{"task": self.name, "metric": name, "value": value} for name, value in values.items()]

    def receipt(self) -> dict[str, object]:
        return {**self.pairs.receipt(), "repeats": REPEATS, "threads": torch.get_num_threads()}
