"""Time two ways to do the same work in turns, describe the machine, and format the report."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from tqdm.auto import tqdm

from ..environment import default_device, device_name, processor, versions
from ..errors import UserError
from ..tables import text_table


def race(ours: Callable[[], object], usual: Callable[[], object], *, repeats: int = 5) -> dict[str, Any]:
    """Time two ways to do the same work in turns, so that a busy machine slows down both.

    Args:
        ours, usual: the two functions.
        repeats: number of turns. In every turn both run; the first to run alternates.

    Returns:
        `seconds`, of every turn of both; `median`, of both; `ratio`, our median divided by the usual one; `cpu_ratio`,
        the same of processor time, which other processes disturb less.

    Raises:
        UserError: fewer than one turn.

    Example:
        >>> figures = race(lambda: None, lambda: time.sleep(0.01), repeats=3)
        >>> len(figures["seconds"]["usual"]), figures["ratio"] < 0.5, figures["cpu_ratio"] > 0
        (3, True, True)
    """
    if repeats < 1:
        raise UserError(f"repeats: {repeats} must be at least 1")
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
    if "sets" in report:
        sets = {f"{report['benchmark']}, {name}": figures for name, figures in report["sets"].items()}
        return "\n".join(format_benchmark({**figures, "benchmark": name}) for name, figures in sets.items())
    if "axes" in report:
        points = [(axis, value, point) for axis, values in report["axes"].items() for value, point in values.items()]
        return "\n".join(
            f"{axis} {value}: {point['rows per second']:.1f} rows per second" for axis, value, point in points
        )
    if "points" in report:
        return "\n".join(_format_point(point, report["points"]) for point in report["points"])
    if "shapes" in report:
        return "\n".join(
            f"{name}: {shape['bytes'] / 1e6:.0f} MB, {shape['cpu_ms_per_sentence']:.2f} ms of processor time each"
            for name, shape in report["shapes"].items()
        )
    if "memory ratio" in report:
        ours, usual = (size / 1e6 for size in report["peak bytes"].values())
        return (
            f"{report['benchmark']}: {ours:,.0f} MB against {usual:,.0f} MB, ratio {report['memory ratio']:.3f} "
            f"({report['floor']:.3f} with the gradients of the heads only)"
        )
    if "starts" in report:
        return "\n".join(
            f"{lines:,} lines, {name} start: first update after {start['seconds']:.1f} s, "
            f"at most {start['memory'] / 2**20:,.0f} MiB"
            for lines, both in report["starts"].items()
            for name, start in both.items()
        )
    if "parts" in report:
        return _format_epoch(report)
    if "updates" in report:
        return _format_device(report)
    if "programs" in report:
        return "\n".join(_format_program(name, program) for name, program in report["programs"].items())
    median, turns = report["median"], len(report["seconds"]["ours"])
    line = (
        f"{report['benchmark']}: {median['ours']:.2f} s against {median['usual']:.2f} s (medians of {turns}), "
        f"ratio {report['ratio']:.3f} (of processor time {report['cpu_ratio']:.3f})"
    )
    if "against padded" in report:
        faster = report["against padded"]
        line += f"; {faster['speedup']:.2f} times the speed of padded steps (limit {faster['limit']:.2f})"
    return line + "".join(f"; {text.format(report[key])}" for key, text in DETAILS.items() if key in report)


def _format_epoch(report: dict) -> str:
    update = report["update"]
    lines = [f"10^6 sentences: {report['epoch']:,.0f} s; an update of {report['batch_size']}: {1000 * update:.1f} ms"]
    parts = [[part, f"{1000 * each:.1f} ms", f"{each / update:.1%}"] for part, each in report["parts"].items()]
    lines += [text_table(parts)]
    lines += [f"floor by operations: {1000 * report['floor']:.1f} ms; writing a checkpoint: {report['writing']:.2f} s"]
    return "\n".join(lines)


def _format_device(report: dict) -> str:
    head = ("method", "batch", "precision", "layout", "updates/s", "10^6 in s", "R", "share", "GB")
    rows = [
        (
            one["method"],
            str(one["batch_size"]),
            one["precision"],
            one["layout"],
            f"{one['updates per second']:.2f}",
            f"{one['seconds for 10^6 sentences']:,.0f}",
            f"{one['R']:.3f}" if "R" in one else "",
            f"{one['share']:.2f}" if "share" in one else "",
            f"{one['peak bytes'] / 1e9:.1f}" if one["peak bytes"] else "",
        )
        for one in report["updates"]
    ]
    lines = [text_table([head, *rows], left=(0, 2, 3))]
    lines += [f"encode in {dtype}: {rate:,.0f} sentences a second" for dtype, rate in report["encoding"].items()]
    lines += [f"an evaluation: {report['evaluation']:.2f} s"] if report["evaluation"] else []
    lines += [f"failed: {setting}: {error}" for setting, error in report["failed"].items()]
    return "\n".join([*lines, *(f"not measured: {setting}" for setting in report["left"])])


def _format_point(point: dict, points: list[dict]) -> str:
    complete = next(each for each in points if each["label"] == point["label"])
    kept = statistics.mean(point["spearman"]) / statistics.mean(complete["spearman"])
    deviation = f" ± {statistics.stdev(point['spearman']):.2f}" if len(point["spearman"]) > 1 else ""
    return (
        f"{point['label']}, {point['dimensions']} dimensions, {point['precision']}: {point['bytes']:,} bytes, "
        f"STS {statistics.mean(point['spearman']):.2f}{deviation} ({kept:.1%} of complete), "
        f"recall@10 {statistics.mean(point['recall@10']):.2f}"
    )


def _format_program(name: str, program: dict) -> str:
    memory, growth = max(program["rss"]) / 2**20, program["growth"]["rss"] / 2**20
    return (
        f"{name}: at most {memory:,.0f} MiB and {max(program['files'])} open files; from the second quarter of the "
        f"time to the last: {growth:+,.1f} MiB, {program['growth']['files']:+,.0f} files"
    )


# What some benchmarks report besides their times.
DETAILS = {
    "difference": "largest difference {:.1e}",
    "floor": "{:.3f} by counted operations",
    "speedup": "{:.2f} times the speed",
    "rows per second": "{:,.0f} rows per second",
    "seconds for 10^6 sentences": "10^6 sentences in {:,.0f} s",
}
