"""Commands that draw what a model does: portrait, weakened."""

from __future__ import annotations

import argparse

from ..environment import quiet_transformers
from ..errors import refuse_bytes
from .options import SENTEVAL, Command, refuse_unwritable_picture, whole


def add_commands(command: Command) -> None:
    added = command(
        "portrait",
        portrait,
        "draw how an encoder sees STS-B: its similarities at each gold score, pairs of sentences on a plane, or its "
        "score by layer and pooling",
        "csezoo portrait runs/quickstart/best --of similarities --data SentEval/data --out similarities.png",
    )
    added.add_argument("model", metavar="MODEL", help="directory or Hub id, as for evaluate")
    added.add_argument("--of", required=True, choices=("similarities", "pairs", "layers"), help="what to draw")
    added.add_argument("--data", **SENTEVAL)
    added.add_argument("--pooling", help="pooling of a plain transformers encoder, such as cls or mean")
    added.add_argument("--out", required=True, metavar="FILE.png", help="file of the picture")
    added = command(
        "weakened",
        weakened,
        "draw which tokens of the given sentences an L2P-CSR run weakens, at each perturbed layer",
        'csezoo weakened runs/l2pcsr-bert-base-uncased --sentences "A cat sits." "A dog runs." --out weakened.png',
    )
    added.add_argument(
        "run_directory", metavar="RUN", help="a run directory, or the directory of one seed (RUN/seed-1)"
    )
    sentences = "two or more sentences; each is a negative of the others"
    added.add_argument("--sentences", nargs="+", required=True, metavar="SENTENCE", help=sentences)
    added.add_argument("--out", required=True, metavar="FILE.png", help="file of the picture")
    added.add_argument(
        "--seed", type=whole(0, 2**32 - 1), default=0, help="seed of dropout and of the initial masks (default: 0)"
    )


def portrait(options: argparse.Namespace) -> None:
    from ..pictures.portraits import PORTRAITS

    refuse_unwritable_picture(options.out)
    quiet_transformers()
    PORTRAITS[options.of](options.model, options.pooling, options.data, options.out)
    print(options.out)


def weakened(options: argparse.Namespace) -> None:
    from ..loop.weakened import weakened_tokens
    from ..pictures.weakened_tokens import draw_weakened_tokens

    refuse_unwritable_picture(options.out)
    refuse_bytes("sentences", " ".join(options.sentences))
    quiet_transformers()  # else it warns about the base model, whose weights the checkpoint replaces
    draw_weakened_tokens(weakened_tokens(options.run_directory, options.sentences, seed=options.seed), options.out)
    print(options.out)
