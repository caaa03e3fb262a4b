"""The command that searches for good values of a recipe's keys: tune."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

from ..errors import UserError, refuse_missing
from .options import Command, whole
from .reproducing import add_machines, begin, hand_out, key_values, refuse_unused_machines

OBJECTIVES = ("sts-dev", "sts-sickr-dev", "transfer-dev", "unlabelled")  # as `COLUMNS` of tuning, which takes seconds


def add_commands(command: Command) -> None:
    added = command(
        "tune",
        tune,
        "search for good values of a recipe's keys, and train the winner on fresh seeds",
        "csezoo tune diffcse-bert-base-uncased-sts --space diffcse/appendix-a --trials 40",
    )
    added.add_argument("recipe", metavar="RECIPE", help="a recipe of the zoo, or the path of a YAML file")
    space = "YAML file with choices or an interval for each key, or a paper's: diffcse/appendix-a, prdsimcse/table-3"
    added.add_argument("--space", required=True, metavar="FILE", help=space)
    trials = "number of runs; if a space of choices has no more points than this, each is tried once"
    added.add_argument("--trials", required=True, type=whole(), metavar="N", help=trials)
    objective = "what is maximised: STS-B dev (default), its mean with SICK-R dev, the mean of the transfer tasks "
    objective += "on dev, or a criterion that needs no labels"
    added.add_argument("--objective", default="sts-dev", choices=OBJECTIVES, help=objective)
    sentences = "with --objective unlabelled: sentences that no run is trained on, one on each line"
    added.add_argument("--sentences", metavar="FILE", help=sentences)
    seeds = "seeds of the winner (default: the three after the seed of the trials)"
    added.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help=seeds)
    added.add_argument("--trial-seed", type=int, default=42, metavar="SEED", help="seed of every trial (default: 42)")
    added.add_argument("--no-pruning", action="store_true", help="train every trial to its end")
    added.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="set keys of every run")
    profile = "a YAML file with other base models, data or fewer updates, as for csezoo reproduce"
    added.add_argument("--profile", metavar="FILE", help=profile)
    added.add_argument("--data", metavar="DIR", help="evaluation data: hub (default), or a directory")
    add_machines(added)
    out = "directory of the search (default: tuned/RECIPE); the same command resumes it"
    added.add_argument("--out", metavar="DIR", help=out)


def tune(options: argparse.Namespace) -> None:
    from ..recipes import load_recipe
    from ..reproducing.profiles import load_profile
    from ..reproducing.runs import WAIT

    refuse_missing("tune", "optuna")
    from ..tuning.objectives import WITHOUT_LABELS, read_sentences
    from ..tuning.search import Search, make_trial, missing
    from ..tuning.spaces import load_space
    from ..tuning.winner import make_winner, refuse_seen, winner_of, write_report

    refuse_unused_machines(options)
    if options.sentences is not None and options.objective != "unlabelled":
        raise UserError("--sentences: only the objective without labels reads them; give --objective unlabelled too")
    profile, given = load_profile(options.profile, options.data), key_values(options.set)
    overrides = {**profile.overrides(load_recipe(options.recipe, given)), **given}
    sentences: list[str] = []
    if options.objective == "unlabelled":
        if labels := sorted(WITHOUT_LABELS.keys() & given.keys()):
            raise UserError(f"set: the objective unlabelled reads no {labels[0]}; leave it out")
        overrides |= WITHOUT_LABELS
        sentences = read_sentences(options.sentences)
    seeds = options.seeds or [options.trial_seed + number for number in (1, 2, 3)]
    refuse_seen(options.trial_seed, seeds)
    for chosen in ([options.trial_seed], seeds):
        load_recipe(options.recipe, {**overrides, "seeds": chosen})  # a wrong seed is reported before the trials
    search = Search(
        recipe=options.recipe,
        space=load_space(options.space, options.recipe, overrides),
        objective=options.objective,
        trials=options.trials,
        out=Path(options.out or f"tuned/{Path(options.recipe).stem}"),
        overrides=overrides,
        seed=options.trial_seed,
        data=profile.data,
        transfer_rows=profile.transfer_rows,
        sentences=tuple(sentences),
        launcher=tuple(options.launch),
        prune=not options.no_pruning,
    )
    begin(search.out)
    name, ours = search.out.name, True
    while trials := range(missing(search)):
        if not ours:
            time.sleep(WAIT)  # for trials that other machines are making
        if options.on == "here":
            ours = make_trial(search)
        elif failed := hand_out(options, partial(make_trial, search), trials, name, search.out):
            number, reason = next(iter(failed.items()))
            raise UserError(f"{len(failed)} of {len(trials)} tasks failed; the first is {number}: {reason}")
        else:
            ours = False
    winner = winner_of(search, seeds)
    if options.on == "here":
        make_winner(search, winner)
    elif failed := hand_out(options, partial(make_winner, search), [winner], f"{name}-winner", search.out):
        raise UserError(f"{winner.directory}: {failed[0]}")
    path, text = write_report(search, winner)
    print(f"{text}\n\n{path}\n{winner.directory}")
