"""The winner of a search: its run on fresh seeds, and the files that say how it was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..errors import UserError
from ..files import read_json, write_json
from ..reproducing.plan import Run
from ..reproducing.runs import make_one, train
from ..tables import text_table
from .search import Search, best


def winner_of(search: Search, seeds: Sequence[int]) -> Run:
    """Return the run of the best trial's values, on seeds that the search has not seen."""
    refuse_seen(search.seed, seeds)
    trial = best(search.study())
    run = search.run(trial.params)
    directory = search.out / f"winner-{trial.number}"
    recipe = replace(run.recipe, seeds=list(seeds))  # type: ignore[type-var]
    return replace(run, directory=directory, model=str(directory / "best"), recipe=recipe)


def refuse_seen(seed: int, seeds: Sequence[int]) -> None:
    """Refuse to judge the winner by the seed that it was chosen by: its score is too high there."""
    if seed in seeds:
        raise UserError(f"--seeds: the trials have seed {seed}; the winner needs others, or give another --trial-seed")


def make_winner(search: Search, run: Run) -> None:
    """Train the winner, unless it is trained."""
    make_one(run, columns=[], train=partial(train, launcher=search.launcher))


def write_report(search: Search, run: Run) -> tuple[Path, str]:
    """Write `trials.csv` and `search.json`.

    Returns:
        The path of `search.json`, and a text with the best trials and the winner's scores.
    """
    study = search.study()
    trial = best(study)
    table = study.trials_dataframe(attrs=("number", "value", "state", "params", "datetime_start", "duration"))
    table.loc[table["state"] != "COMPLETE", "value"] = None  # of a pruned one, its last dev score
    table.to_csv(search.out / "trials.csv", index=False)
    results = read_json(run.directory / "results.json")
    content = {
        **study.user_attrs["search"],
        "trials": {state: int(number) for state, number in table["state"].value_counts().items()},
        "best_trial": trial.number,
        "best_value": trial.value,
        "best_values": trial.params,
        "winner": run.directory.name,
        "results": {key: results[key] for key in ("seed", "seeds", "summary", "results") if key in results},
    }
    write_json(search.out / "search.json", content)
    finished = table[table["state"] == "COMPLETE"].sort_values("value", ascending=False)
    shown = finished.drop(columns=["datetime_start", "duration", "state"]).head()
    scores = [[row["task"], f"{row['mean']:.2f} ± {row['sd']:.2f}"] for row in results.get("summary", [])]
    scores = scores or [[row["task"], f"{row['value']:.2f}"] for row in results["results"]]
    winner = f"winner, trial {trial.number}, on fresh seeds:"
    lines = [shown.to_string(index=False), "", winner, text_table(scores) if scores else "no scores, without labels"]
    return search.out / "search.json", "\n".join(lines)
