"""What `csezoo reproduce` prints before it makes anything: the state of all items, and the plan of one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from .estimates import Estimate, estimate
from .manifests import Item, item_names, load_item
from .measuring import finished
from .plan import Planned, Run, plan
from .profiles import Profile


def unique_runs(planned: Sequence[Planned]) -> list[Run]:
    """Return the runs of all rows, each once."""
    return list({run.directory: run for row in planned for run in row.runs}.values())


def list_items(out: Path, profile: Profile, seeds: Sequence[int]) -> str:
    """Return a line for each item: its name, its state in `out`, what it is, and what it needs.

    Args:
        seeds: that each item is made with, instead of those of its recipes.
    """
    lines = []
    for name in item_names():
        item = load_item(name)
        lines.append(f"{name:<24} {state(item, out, profile, seeds):<22} {item.title}")
        lines += [f"{'':<24} needs {need}" for need in item.needs]
    return "\n".join(lines)


def state(item: Item, out: Path, profile: Profile | None = None, seeds: Sequence[int] = ()) -> str:
    """Return how far an item is: `made`, how many of its runs are finished, or that all of its rows are quoted."""
    planned = plan(item, out, seeds=seeds, profile=profile)
    runs = unique_runs(planned)
    done = sum(finished(run, item.columns) for run in runs)
    if not runs:
        return "needs material" if any(row.needs for row in item.rows) else "quoted only"
    if done == len(runs) and (out / item.name / "results.json").is_file():
        return f"made ({done} runs)"
    return f"{done} of {len(runs)} runs"


def describe(item: Item, planned: Sequence[Planned]) -> str:
    """Return the plan of an item: every run with its command, its updates, and an estimate of hours and memory.

    The total is that of the runs that are not finished.
    """
    lines = [f"{item.name}: {item.title}", item.source, ""]
    left: dict[Path, Estimate | None] = {}  # a finished model has no cost
    for row in planned:
        lines.append(row.row.label + (f"  ({'; '.join(row.reasons)})" if row.reasons else ""))
        for run in row.runs:
            done, cost = finished(run, item.columns), estimate(run.recipe) if run.recipe else None
            lines.append(f"  {'finished  ' if done else ''}{_work(run)}")
            if cost is not None:
                updates = "unknown" if cost.updates is None else f"{cost.updates:,}"
                hours = "unknown" if cost.hours is None else f"{cost.hours:.2f}"
                lines.append(f"    updates {updates}  hours {hours}  memory {cost.gigabytes:.0f} GB")
            if not done:
                left[run.directory] = cost
    costs = [cost for cost in left.values() if cost is not None]
    unknown = sum(cost.updates is None for cost in costs)
    total = f"{len(costs)} runs to train, {len(left) - len(costs)} models to evaluate; "
    total += f"{sum(cost.updates or 0 for cost in costs):,} updates, "
    total += f"about {sum(cost.hours or 0.0 for cost in costs):.1f} hours on one Quadro RTX 8000"
    total += f", and {unknown} runs whose data is not known" if unknown else ""
    return "\n".join(
        [*lines, "", total, *(f"note: {note}" for note in item.notes), *(f"needs {n}" for n in item.needs)]
    )


def _work(run: Run) -> str:
    if run.recipe is not None:
        return f"csezoo train {shlex.join(run.command())}"
    options = {"pooling": run.pooling, "serving": run.serving}
    words = [f" --{name} {value}" for name, value in options.items() if value]
    return f"{'evaluate' if run.kind is None else 'convert and evaluate'} {run.model}{''.join(words)}"
