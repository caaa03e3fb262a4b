"""Commands that draw what a model does: portrait, weakened."""

from __future__ import annotations

import argparse

from ..environment import quiet_transformers
from .options import SENTEVAL, Command, check_picture


def add_commands(command: Command) -> None:
    added = command(
        "portrait",
        portrait,
        "draw an encoder on STS-B: similarities at each gold score, pairs on a plane, scores by layer and pooling",
        "csezoo portrait runs/quickstart/best --of similarities --data SentEval/data --out similarities.png",
    )
    added.add_argument("model", help="as of evaluate")
    added.add_argument("--of", required=True, choices=("similarities", "pairs", "layers"), help="what to draw")
    added.add_argument("--data", **SENTEVAL)
    added.add_argument("--pooling", help="for a plain transformers encoder")
    added.add_argument("--out", required=True, metavar="FILE.png", help="write the picture here")
    added = command(
        "weakened",
        weakened,
        "draw which tokens an L2P-CSR run weakens in sentences, at each perturbed layer",
        'csezoo weakened runs/l2pcsr-bert-base-uncased --sentences "A cat sits." "A dog runs." --out weakened.png',
    )
    added.add_argument("run_directory", metavar="RUN", help="a run directory, or one seed's in it (RUN/seed-1)")
    added.add_argument("--sentences", nargs="+", required=True, help="two or more, each other's negatives")
    added.add_argument("--out", required=True, metavar="FILE.png", help="write the picture here")
    added.add_argument("--seed", type=int, default=0, help="of dropout and of the masks' start (0)")


def portrait(options: argparse.Namespace) -> None:
    from ..pictures.portraits import PORTRAITS

    check_picture(options.out)
    quiet_transformers()
    PORTRAITS[options.of](options.model, options.pooling, options.data, options.out)
    print(options.out)


def weakened(options: argparse.Namespace) -> None:
    from ..loop.weakened import weakened_tokens
    from ..pictures.weakened_tokens import draw_weakened_tokens

    check_picture(options.out)
    quiet_transformers()  # on the base model, whose weights the checkpoint replaces
    draw_weakened_tokens(weakened_tokens(options.run_directory, options.sentences, seed=options.seed), options.out)
    print(options.out)
