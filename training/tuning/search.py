"""A search: its trials are runs. Optuna chooses their values, and its journal survives whatever ends a process."""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState

from ..errors import UserError, others
from ..files import locked
from ..hub import sha256
from ..recipes import deciding_keys, load_recipe, recipe_names
from ..reproducing.plan import Run, identity, run_of
from ..reproducing.runs import claim, make_one, train
from .objectives import COLUMNS, UNLABELLED, score
from .spaces import Space, points

logger = logging.getLogger(__name__)
ASKING = ".asking.lock"
FILES = ("train_file", "nli_file", "dev_file", "test_file")
BEGINNING = b'{"op_code":'  # of Optuna's journal
STARTUP = 4  # finished trials before one is pruned


@dataclass(frozen=True)
class Search:
    """A search for good values of a recipe's keys."""

    recipe: str  # its name, or the path of a YAML file
    space: Space  # see `spaces`
    objective: str  # one of `COLUMNS`, maximised
    trials: int  # how many there will be
    out: Path  # directory of the journal and the runs
    overrides: dict[str, Any] = field(default_factory=dict)  # keys of every run, beside those of the space
    seed: int = 42  # of every trial's run, and of what Optuna draws
    # data, transfer_rows: of the suites, see `evaluate`
    data: str = "hub"
    transfer_rows: int | None = None
    sentences: tuple[str, ...] = ()  # held-out sentences, for the objective that needs no labels
    launcher: tuple[str, ...] = ()  # options of `accelerate launch`
    prune: bool = True  # end a trial whose best dev score so far is below the median of the earlier ones

    def study(self) -> optuna.Study:
        """Return the study in the journal of this search; a new one if there is none."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / "journal.log"
        _drop_half_a_line(path)
        storage = JournalStorage(JournalFileBackend(str(path)))
        pruner = MedianPruner(STARTUP) if self.prune and self.objective != UNLABELLED else NopPruner()
        study = optuna.create_study(
            storage=storage, study_name="search", direction="maximize", pruner=pruner, load_if_exists=True
        )
        # What is drawn depends on the seed and the earlier trials alone: a search that is continued draws the same.
        study.sampler = TPESampler(seed=self.seed + len(study.trials))
        distributions = {key: optuna.distributions.distribution_to_json(each) for key, each in self.space.items()}
        mine = {"recipe": self.recipe, "objective": self.objective, "seed": self.seed, "space": distributions}
        mine |= {"overrides": self.overrides, "data": self.data, "transfer_rows": self.transfer_rows}
        # By content, because a file may change: the recipe of a path, its data, the sentences.
        recipe = load_recipe(self.recipe, self.overrides)
        mine["recipe's content"] = identity(deciding_keys(recipe))
        files = {key: Path(str(getattr(recipe, key) or "")) for key in FILES}
        mine |= {f"{key}'s content": sha256(file) for key, file in files.items() if file.is_file()}
        mine |= {"sentences": identity({"sentences": self.sentences})} if self.sentences else {}
        mine = json.loads(json.dumps(mine, default=str))
        begun_as = study.user_attrs.get("search", mine)
        if changed := [key for key in {**mine, **begun_as} if begun_as.get(key) != mine.get(key)]:
            raise UserError(f"--out: {self.out} has a search with {others(sorted(changed))}; choose another one")
        study.set_user_attr("search", mine)
        return study

    def ask(self, study: optuna.Study) -> Trial:
        """Begin a new trial. If there are trials for all points of a grid, take one of the rest; else ask TPE."""
        if self.tries_every_point:
            tried = [trial.params for trial in study.trials if not _lost(trial)]
            choices = [each.choices for each in self.space.values()]  # type: ignore[attr-defined]
            grid = [dict(zip(self.space, values, strict=True)) for values in itertools.product(*choices)]
            random.Random(self.seed).shuffle(grid)
            if not study.get_trials(states=[TrialState.WAITING]):  # left by a process that ended here
                study.enqueue_trial(next(point for point in grid if point not in tried))
        return study.ask(self.space)

    @property
    def tries_every_point(self) -> bool:
        """Whether there are trials for all points of a grid."""
        return points(self.space) <= self.trials

    @property
    def wanted(self) -> int:
        """How many trials there will be: a grid has no more than its points."""
        return int(min(self.trials, points(self.space)))

    def run(self, values: dict[str, Any]) -> Run:
        """Return the run with these values of the space."""
        changed = {**self.overrides, **values}
        source = self.recipe if self.recipe in recipe_names() else str(Path(self.recipe).resolve())
        return run_of(source, load_recipe(self.recipe, changed), changed, self.seed, self.out)


def _drop_half_a_line(journal: Path) -> None:
    """Cut off the last line of a journal if the process that wrote it was killed in it.

    Optuna ignores such a line while it is the last one, but the next would be appended to it.
    """
    if not journal.is_file():
        return
    lock = JournalFileSymlinkLock(str(journal))
    lock.acquire()
    try:
        content = journal.read_bytes()
        if not content.startswith(BEGINNING[: len(content)]):
            raise UserError(f"--out: {journal} is not the journal of a search; choose another --out")
        if content and not content.endswith(b"\n"):
            with journal.open("rb+") as file:
                file.truncate(content.rfind(b"\n") + 1)
    finally:
        lock.release()


def make_trial(search: Search, number: int = 0, *, train: Callable[..., None] = train) -> bool:
    """Make the next trial: one that an ended process left, or a new one. If there are enough, do nothing.

    Returns:
        Whether there was one to make.
    """
    with _next_trial(search) as trial:
        if trial is None:
            return False
        logger.info("trial %d: %s", trial.number, _shown(trial.params))
        options = {"columns": COLUMNS[search.objective], "data": search.data, "transfer_rows": search.transfer_rows}
        try:
            run = search.run(trial.params)  # refuses values that do not go together
            watch = partial(_report, trial, run)
            make_one(run, **options, train=partial(train, launcher=search.launcher, watch=watch))
            value = score(run, search.objective, search.sentences)
            if not math.isfinite(value):
                raise UserError(f"{run.directory}: its {search.objective} is {value}")
        except optuna.TrialPruned:
            trial.study.tell(trial, state=TrialState.PRUNED)
            logger.info("trial %d is pruned", trial.number)
        except UserError as error:
            trial.set_user_attr("reason", str(error))
            trial.study.tell(trial, state=TrialState.FAIL)
            logger.warning("trial %d failed: %s", trial.number, error)
        else:
            trial.study.tell(trial, value)
            logger.info("trial %d: %s %.4f", trial.number, search.objective, value)
    return True


@contextmanager
def _next_trial(search: Search) -> Iterator[Trial | None]:
    """Claim a trial for this process. The claim ends with the process, however it ends."""
    with locked(search.out, ASKING, wait=True):
        study = search.study()
        trial, lock = _left(search, study)
        if trial is None and begun(search, study) < search.wanted:
            trial = search.ask(study)
            lock = _claim(search, trial.number)
    try:
        yield trial
    finally:
        if lock:
            lock.release()


def _claim(search: Search, number: int) -> FileLock | None:
    return claim(search.out / "claims" / f"{number}.lock")


def _left(search: Search, study: optuna.Study) -> tuple[Trial | None, FileLock | None]:
    """Return a trial that has begun and that no process is making."""
    for frozen in study.get_trials(states=[TrialState.RUNNING]):
        if lock := _claim(search, frozen.number):
            if frozen.params.keys() == search.space.keys():
                # Optuna has no other way to report to a trial that is in the journal already.
                return Trial(study, frozen._trial_id), lock
            study.tell(frozen.number, state=TrialState.FAIL)  # the process ended between two of its values
            lock.release()
    return None, None


def begun(search: Search, study: optuna.Study) -> int:
    """Return the number of trials that have begun, without those that are lost.

    Where all points of a grid are tried, return the number of points: TPE repeats some while there are fewer trials.
    """
    tried = [trial.params for trial in study.trials if trial.state != TrialState.WAITING and not _lost(trial)]
    return len({frozenset(values.items()) for values in tried}) if search.tries_every_point else len(tried)


def _lost(trial: FrozenTrial) -> bool:
    """Return whether the process of a trial ended before the trial had values."""
    return trial.state == TrialState.FAIL and "reason" not in trial.user_attrs


def _report(trial: Trial, run: Run) -> None:
    """Report the dev scores of a run that trains. That of its base model, before the first update, does not count.

    Raises:
        optuna.TrialPruned: they are too low.
    """
    metrics = run.directory / "metrics.jsonl"
    if not metrics.is_file():
        return
    known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    for line in metrics.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n") or "dev" not in (point := json.loads(line)) or point["step"] in (0, *known):
            continue
        trial.report(point["dev"], point["step"])
        if trial.should_prune():
            raise optuna.TrialPruned


def _shown(values: dict[str, Any]) -> str:
    words = (f"{value:.4g}" if isinstance(value, float) else value for value in values.values())
    return "  ".join(f"{key} {word}" for key, word in zip(values, words, strict=True))


def missing(search: Search) -> int:
    """Return how many trials are not finished."""
    study = search.study()
    return search.wanted - begun(search, study) + len(study.get_trials(states=[TrialState.RUNNING]))


def best(study: optuna.Study) -> FrozenTrial:
    """Return the trial with the highest objective."""
    if not study.get_trials(states=[TrialState.COMPLETE]):
        reasons = [trial.user_attrs["reason"] for trial in study.trials if "reason" in trial.user_attrs]
        way_out = "; a trial that failed is not made again: mend what it says, and give another --out"
        raise UserError(f"no trial was finished{': ' + reasons[0] + way_out if reasons else ''}")
    return study.best_trial
