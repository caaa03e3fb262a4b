"""The `csezoo` command. Every sub-command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .errors import UserError


def main(arguments: list[str] | None = None) -> None:
    """Parse and run; an error a user caused ends it with one line and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["train"]:  # its keys are the recipe's, not argparse's
        from .train import main as train_main

        return train_main(arguments[1:])
    options = build_parser().parse_args(arguments)
    try:
        options.run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def build_parser() -> argparse.ArgumentParser:
    """All sub-commands and their options, each with an example."""
    parser = argparse.ArgumentParser(prog="csezoo", description="A model zoo of contrastive sentence embeddings.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, run, summary, example):
        added = commands.add_parser(name, help=summary, description=summary, epilog=f"example: {example}")
        added.set_defaults(run=run)
        return added

    data = {"default": "hub", "help": "hub (default) or a directory in SentEval's layout"}
    command("recipes", recipes, "list the recipes of the zoo", "csezoo recipes")
    command(
        "train",
        None,
        "train a recipe on one process (accelerate launch -m csezoo.training.train for more)",
        "csezoo train simcse-bert-base-uncased --train_file sentences.txt --eval_data none",
    )
    added = command(
        "evaluate",
        evaluate,
        "score a model and write the results with their receipts",
        "csezoo evaluate runs/quickstart/best --suite sts --data SentEval/data --out result.json",
    )
    added.add_argument(
        "model", help="directory or Hub id: of the zoo, of transformers (--pooling), of sentence-transformers"
    )
    suites = "sts (the default), sts-dev, transfer, transfer-fast, sts-length, geometry, retrieval"
    added.add_argument("--suite", nargs="+", default=["sts"], metavar="SUITE", help=suites)
    added.add_argument("--queries", nargs="+", help="sentences whose neighbours the suite retrieval shows")
    added.add_argument("--data", **data)
    added.add_argument("--out", help="write the JSON result here")
    added.add_argument(
        "--pooling", help="for a plain transformers encoder: cls, mean, max, first_last_mean, last2_mean"
    )
    added.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="of the weights")
    added.add_argument("--batch_size", type=int, default=128, help="texts a forward pass (128)")
    added = command(
        "compare",
        compare,
        "test whether one model is better than another, by a paired bootstrap over the pairs of each task",
        "csezoo compare runs/a/best runs/b/best --data SentEval/data",
    )
    added.add_argument("models", nargs=2, metavar="MODEL", help="as of evaluate")
    added.add_argument(
        "--suite", nargs="+", default=["sts"], metavar="SUITE", help="sts (default), sts-dev, sts-length"
    )
    added.add_argument("--data", **data)
    added.add_argument(
        "--pooling", nargs=2, metavar="POOLING", help="of the two models, `own` for one that has its own"
    )
    added.add_argument("--resamples", type=int, default=1000, help="draws a task (1000)")
    added = command(
        "table",
        table,
        "put results files side by side",
        "csezoo table model_cards/*/results.json --format latex",
    )
    added.add_argument("files", nargs="+", help="results.json of runs, or what evaluate --out wrote")
    added.add_argument("--format", default="markdown", choices=("markdown", "latex", "csv"))
    added = command(
        "publish",
        publish,
        "push a finished run to the Hub in one commit",
        "csezoo publish runs/quickstart --to my-name/my-model --private",
    )
    added.add_argument("run_directory", metavar="RUN", help="a run directory, or a repository directory itself")
    added.add_argument("--to", required=True, metavar="ORG/NAME", help="the Hub repository, made if it is not there")
    added.add_argument("--private", action="store_true", help="make a new repository private")
    added = command(
        "export",
        export,
        "write a checkpoint as a plain repository without code, and check that it gives the same vectors",
        "csezoo export runs/quickstart --to quickstart-plain --onnx",
    )
    added.add_argument("checkpoint", metavar="RUN", help="a run directory, a repository directory or a Hub id")
    added.add_argument("--to", required=True, metavar="DIR", help="a new directory")
    added.add_argument(
        "--onnx", action="store_true", help="add onnx/model.onnx, or write it alone where there is no plain form"
    )
    added = command(
        "portrait",
        portrait,
        "draw an encoder on STS-B: similarities at each gold score, pairs on a plane, scores by layer and pooling",
        "csezoo portrait runs/quickstart/best --of similarities --data SentEval/data --out similarities.png",
    )
    added.add_argument("model", help="as of evaluate")
    added.add_argument("--of", required=True, choices=("similarities", "pairs", "layers"), help="what to draw")
    added.add_argument("--data", **data)
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
    return parser


def recipes(options) -> None:
    import yaml

    from .recipes import RECIPES, recipe_names

    for name in recipe_names():
        recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
        print(f"{name:<36} {recipe['method']:<10} {recipe.get('base_model') or 'trained on the spot'}")


def evaluate(options) -> None:
    from .encoders import load_encoder
    from .evaluation import evaluate as run_suites
    from .evaluation import format_report

    if options.batch_size < 1:
        raise UserError(f"batch_size: {options.batch_size} must be at least 1")
    if options.out:
        check_out(options.out)
    encode, receipt = load_encoder(
        options.model,
        pooling=options.pooling,
        batch_size=options.batch_size,
        dtype=options.dtype,
        progress=sys.stderr.isatty(),
    )
    scored = run_suites(encode, options.suite, options.data, receipt=receipt, queries=options.queries)
    report = {"model": options.model, **scored}
    print(format_report(Path(options.model).name, report["results"]))
    if options.out:
        Path(options.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def check_picture(out: str) -> None:
    """Refuse a file that is no PNG, before anything is computed."""
    if not out.endswith(".png"):
        raise UserError(f"out: {out} is no PNG file, give FILE.png")
    check_out(out)


def check_out(out: str) -> None:
    """A file that cannot be written is better refused before the work than after it."""
    if not Path(out).absolute().parent.is_dir():
        raise UserError(f"out: {Path(out).parent} is no directory")


def compare(options) -> None:
    from .encoders import load_encoder
    from .evaluation import load_suites
    from .statistics import compare as bootstrap

    if options.resamples < 1:
        raise UserError(f"resamples: {options.resamples} must be at least 1")
    poolings = [None if pooling == "own" else pooling for pooling in options.pooling or ("own", "own")]
    models = zip(options.models, poolings, strict=True)
    encoders = [load_encoder(model, pooling=pooling, progress=sys.stderr.isatty())[0] for model, pooling in models]
    tasks = [task for suite in load_suites(options.suite, options.data).values() for task in suite]
    for made in bootstrap(*encoders, tasks, resamples=options.resamples, progress=sys.stderr.isatty()):
        interval = f"{made['difference']:+.2f} [{made['low']:+.2f}, {made['high']:+.2f}]"
        print(f"{made['task']:<24} {made['first']:6.2f} {made['second']:6.2f}  {interval}  p {made['p']:.3f}")


def table(options) -> None:
    from .tables import format_rows, read_row

    print(format_rows([read_row(file) for file in options.files], options.format))


def portrait(options) -> None:
    from .portraits import PORTRAITS

    check_picture(options.out)
    PORTRAITS[options.of](options.model, options.pooling, options.data, options.out)
    print(options.out)


def publish(options) -> None:
    from .publishing import publish as push

    print(push(options.run_directory, options.to, private=options.private))


def export(options) -> None:
    from .exporting import export as write

    for way, difference in write(options.checkpoint, options.to, onnx=options.onnx).items():
        print(f"{way:<24} gives the same vectors, to {difference:.0e}")
    print(options.to)


def weakened(options) -> None:
    from transformers.utils import logging

    from .pictures import draw_weakened_tokens
    from .weakened import weakened_tokens

    check_picture(options.out)
    logging.set_verbosity_error()  # of the base model, whose weights the checkpoint replaces
    logging.disable_progress_bar()
    draw_weakened_tokens(weakened_tokens(options.run_directory, options.sentences, seed=options.seed), options.out)
    print(options.out)


if __name__ == "__main__":
    main()
