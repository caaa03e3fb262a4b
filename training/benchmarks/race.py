"""Time two ways to do the same work in turns, describe the machine, and format the report."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tqdm.auto import tqdm

from ..environment import default_device, device_name, processor, versions
from ..tables import mean_and_deviation, text_table


def race(ours: Callable[[], object], usual: Callable[[], object], *, repeats: int = 5) -> dict[str, Any]:
    """Time two ways to do the same work in turns, so that a busy machine slows down both.

    Returns:
        `seconds`, of every turn of both; `median`, of both; `ratio`, our median divided by the usual one; `cpu_ratio`,
        the same of processor time, which other processes disturb less.

    Example:
        >>> figures = race(lambda: None, lambda: time.sleep(0.01), repeats=3)
        >>> len(figures["seconds"]["usual"]), figures["ratio"] < 0.5, figures["cpu_ratio"] > 0
        (3, True, True)
    """
    seconds: dict[str, list[float]] = {"ours": [], "usual": []}
    cpu_seconds: dict[str, list[float]] = {"ours": [], "usual": []}
    for turn in tqdm(range(repeats), desc="Turns", disable=not sys.stderr.isatty()):
        for name, run in sorted({"ours": ours, "usual": usual}.items(), reverse=turn % 2 == 1):
            started, cpu_started = time.perf_counter(), time.process_time()
            run()
            seconds[name].append(time.perf_counter() - started)
            cpu_seconds[name].append(time.process_time() - cpu_started)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    cpu_ratio = statistics.median(cpu_seconds["ours"]) / statistics.median(cpu_seconds["usual"])
    return {"seconds": seconds, "median": median, "ratio": median["ours"] / median["usual"], "cpu_ratio": cpu_ratio}


def seconds_of(run: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def machine() -> dict[str, object]:
    """Return device, processor, system, number of processors, threads and library versions, for the report."""
    hardware: dict[str, object] = {"device": device_name(default_device()), "processor": processor()}
    hardware |= {"system": platform.platform(), "cpus": os.cpu_count()}
    return {**hardware, "threads": torch.get_num_threads(), "versions": versions()}


def format_benchmark(report: dict) -> str:
    """Return the text of a report: one line, or one line for each set, point, shape or program in it.

    Example:
        >>> figures = {"median": {"ours": 6.0, "usual": 10.0}, "seconds": {"ours": [6.0]}, "ratio": 0.6}
        >>> print(format_benchmark({**figures, "cpu_ratio": 0.59, "benchmark": "sts", "speedup": 1.7}))
        sts: 6.00 s against 10.00 s (medians of 1), ratio 0.600 (of processor time 0.590); 1.70 times the speed
    """
    return "\n".join(next((lines for part, lines in PARTS.items() if part in report), _race)(report))


def _race(report: dict) -> Iterator[str]:
    median, turns = report["median"], len(report["seconds"]["ours"])
    line = (
        f"{report['benchmark']}: {median['ours']:.2f} s against {median['usual']:.2f} s (medians of {turns}), "
        f"ratio {report['ratio']:.3f} (of processor time {report['cpu_ratio']:.3f})"
    )
    if "against padded" in report:
        faster = report["against padded"]
        line += f"; {faster['speedup']:.2f} times the speed of padded steps (limit {faster['limit']:.2f})"
    yield line + "".join(f"; {text.format(report[key])}" for key, text in DETAILS.items() if key in report)


def _sets(report: dict) -> Iterator[str]:
    for name, figures in report["sets"].items():
        yield from _race({**figures, "benchmark": f"{report['benchmark']}, {name}"})


def _axes(report: dict) -> Iterator[str]:
    for axis, values in report["axes"].items():
        for value, point in values.items():
            yield f"{axis} {value}: {point['rows per second']:.1f} rows per second"


def _shapes(report: dict) -> Iterator[str]:
    for name, shape in report["shapes"].items():
        cost = f"{shape['cpu_ms_per_sentence']:.2f} ms of processor time each"
        yield f"{name}: {shape['bytes'] / 1e6:.0f} MB, {cost}"


def _memory(report: dict) -> Iterator[str]:
    ours, usual = (size / 1e6 for size in report["peak bytes"].values())
    yield (
        f"{report['benchmark']}: {ours:,.0f} MB against {usual:,.0f} MB, ratio {report['memory ratio']:.3f} "
        f"({report['floor']:.3f} with the gradients of the heads only)"
    )


def _starts(report: dict) -> Iterator[str]:
    for lines, both in report["starts"].items():
        for name, start in both.items():
            after = f"first update after {start['seconds']:.1f} s, at most {start['memory'] / 2**20:,.0f} MiB"
            yield f"{lines:,} lines, {name} start: {after}"


def _epoch(report: dict) -> Iterator[str]:
    update = report["update"]
    yield f"10^6 sentences: {report['epoch']:,.0f} s; an update of {report['batch_size']}: {1000 * update:.1f} ms"
    yield text_table(
        [[part, f"{1000 * each:.1f} ms", f"{each / update:.1%}"] for part, each in report["parts"].items()]
    )
    yield f"floor by operations: {1000 * report['floor']:.1f} ms; writing a checkpoint: {report['writing']:.2f} s"


def _device(report: dict) -> Iterator[str]:
    rows = [["method", "batch", "precision", "layout", "updates/s", "10^6 in s", "R", "share", "GB"]]
    for one in report["updates"]:
        numbers = [f"{one['updates per second']:.2f}", f"{one['seconds for 10^6 sentences']:,.0f}"]
        numbers += [f"{one['R']:.3f}" if "R" in one else "", f"{one['share']:.2f}" if "share" in one else ""]
        numbers.append(f"{one['peak bytes'] / 1e9:.1f}" if one["peak bytes"] else "")
        rows.append([one["method"], str(one["batch_size"]), one["precision"], one["layout"], *numbers])
    yield text_table(rows, left=(0, 2, 3))
    yield from (f"encode in {dtype}: {rate:,.0f} sentences a second" for dtype, rate in report["encoding"].items())
    if report["evaluation"]:
        yield f"an evaluation: {report['evaluation']:.2f} s"
    yield from (f"failed: {setting}: {error}" for setting, error in report["failed"].items())
    yield from (f"not measured: {setting}" for setting in report["left"])


def _points(report: dict) -> Iterator[str]:
    complete: dict[str, float] = {}
    for point in report["points"]:
        score = statistics.mean(point["spearman"])
        kept = score / complete.setdefault(point["label"], score)
        yield (
            f"{point['label']}, {point['dimensions']} dimensions, {point['precision']}: {point['bytes']:,} bytes, "
            f"STS {mean_and_deviation(point['spearman'])} ({kept:.1%} of complete), "
            f"recall@10 {statistics.mean(point['recall@10']):.2f}"
        )


def _programs(report: dict) -> Iterator[str]:
    for name, program in report["programs"].items():
        memory, growth = max(program["rss"]) / 2**20, program["growth"]["rss"] / 2**20
        yield (
            f"{name}: at most {memory:,.0f} MiB and {max(program['files'])} open files; from the second quarter of "
            f"the time to the last: {growth:+,.1f} MiB, {program['growth']['files']:+,.0f} files"
        )


# By a part that no other kind of report has.
PARTS: dict[str, Callable[[dict], Iterator[str]]] = {
    "sets": _sets,
    "axes": _axes,
    "points": _points,
    "shapes": _shapes,
    "memory ratio": _memory,
    "starts": _starts,
    "parts": _epoch,
    "updates": _device,
    "programs": _programs,
}
# What some benchmarks report besides their times.
DETAILS = {
    "difference": "largest difference {:.1e}",
    "floor": "{:.3f} by counted operations",
    "speedup": "{:.2f} times the speed",
    "rows per second": "{:,.0f} rows per second",
    "seconds for 10^6 sentences": "10^6 sentences in {:,.0f} s",
}
