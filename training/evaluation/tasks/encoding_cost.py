"""What encoding costs on this machine: time, tokens per second, memory."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from ...environment import peak_device_bytes, peak_rss_bytes
from ..encoded import CountingEncoder, Encoded
from .sts import PairTask, load_task


@dataclass
class CostTask:
    """The sentences of the pairs, each once, encoded in one call; nothing of it is kept for other tasks.

    Another run gives other figures: those of one machine, as busy as it was.

    Args:
        pairs: whose sentences are encoded.
        repeats: calls after a first one that warms up; the median counts.
    """

    pairs: PairTask
    repeats: int = 3

    @property
    def name(self) -> str:
        return f"{self.pairs.name} cost"

    def sentences(self) -> set[str]:
        return set()  # none is looked up: encoding is what is measured

    def results(self, vectors: Encoded) -> list[dict]:
        """Seconds of one call, sentences (and tokens, where the encoder counts them) per second, peak memory."""
        encode, texts = vectors.encode, sorted(self.pairs.sentences())
        seconds = []
        for _ in range(self.repeats + 1):
            started = time.perf_counter()
            encode(texts)
            seconds.append(time.perf_counter() - started)
        median = statistics.median(seconds[1:])
        values = {"seconds": median, "sentences per second": len(texts) / median}
        if isinstance(encode, CountingEncoder):
            values["tokens per second"] = encode.count_tokens(texts) / median
        values["peak RSS, GiB"] = peak_rss_bytes() / 2**30
        if (held := peak_device_bytes()) is not None:
            values["peak GPU memory, GiB"] = held / 2**30
        return [{"task": self.name, "metric": name, "value": value} for name, value in values.items()]

    def receipt(self) -> dict[str, object]:
        return {**self.pairs.receipt(), "repeats": self.repeats, "threads": torch.get_num_threads()}


def load_cost(data: str) -> list[CostTask]:
    """The cost of encoding the sentences of STS-B test."""
    return [CostTask(load_task("STSBenchmark", data))]
