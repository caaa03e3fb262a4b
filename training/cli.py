"""The `csezoo` command. Every sub-command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from functools import partial
from pathlib import Path

from .errors import UserError


def main(arguments: list[str] | None = None) -> None:
    """Parse and run; an error a user caused ends it with one line and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["train"]:  # its keys are the recipe's, not argparse's
        from .train import main as train_main

        return train_main(arguments[1:])
    options = build_parser().parse_args(arguments)
    options.command = shlex.join(["csezoo", *arguments])
    try:
        options.run(options)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader has what it wanted, as in `csezoo recipes | head -2`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit


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
    suites = "sts (the default without --pairs), sts-dev, transfer, transfer-fast, sts-length, sts-multilingual, "
    suites += "sts-spanish, chinese, geometry, retrieval, cost"
    added.add_argument("--suite", nargs="+", metavar="SUITE", help=suites)
    own = "CSV files of your own with the columns sentence1, sentence2, score, each a task by its name"
    added.add_argument("--pairs", nargs="+", default=[], metavar="FILE.csv", help=own)
    added.add_argument("--queries", nargs="+", help="sentences whose neighbours the suite retrieval shows")
    added.add_argument("--data", **data)
    added.add_argument(
        "--out", help="write the JSON results here, task by task; what the file holds already is not done again"
    )
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
        "--suite",
        nargs="+",
        default=["sts"],
        metavar="SUITE",
        help="sts (default), sts-dev, sts-length, sts-multilingual, sts-spanish, chinese",
    )
    added.add_argument("--data", **data)
    added.add_argument(
        "--pooling", nargs=2, metavar="POOLING", help="of the two models, `own` for one that has its own"
    )
    added.add_argument("--resamples", type=int, default=1000, help="draws a task (1000)")
    added = command(
        "glue",
        glue,
        "fine-tune a model on tasks of GLUE and score their dev sets",
        "csezoo glue runs/quickstart/best --tasks MRPC RTE --data GLUE --seeds 1 2 3 --out glue.json",
    )
    added.add_argument("model", help="directory or Hub id: of the zoo (its backbone) or of transformers")
    names = "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI"
    added.add_argument("--tasks", nargs="+", required=True, metavar="TASK", help=names)
    added.add_argument(
        "--data", default="hub", help="hub (default) or a directory in GLUE's layout: MRPC/train.tsv, …"
    )
    added.add_argument("--learning_rate", type=float, default=2e-5, help="of AdamW, falling linearly to 0 (2e-5)")
    added.add_argument("--epochs", type=float, default=3, help="over the training set (3)")
    added.add_argument("--batch_size", type=int, default=32, help="examples an update (32)")
    added.add_argument("--max_length", type=int, default=128, help="word pieces of an example (128)")
    share = (
        "share of the dev set that chooses the epoch, the rest tests (0: the last epoch, tested on all; SG-OPT 0.1)"
    )
    added.add_argument("--dev_share", type=float, default=0.0, help=share)
    added.add_argument("--seeds", type=int, nargs="+", default=[42], metavar="SEED", help="each a run of its own (42)")
    added.add_argument("--out", help="write the JSON result here")
    added = command(
        "benchmark",
        benchmark,
        "time a part of the zoo against the usual way to do the same, in turns, and report the ratio",
        "csezoo benchmark sts --model runs/quickstart/best --data SentEval/data",
    )
    added.add_argument("what", choices=("sts",), help="the suite sts against the way that SentEval encodes it")
    added.add_argument("--model", required=True, help="as of evaluate")
    added.add_argument("--data", required=True, metavar="DIR", help="a directory in SentEval's layout")
    added.add_argument("--pooling", help="for a plain transformers encoder")
    added.add_argument("--tasks", nargs="+", metavar="TASK", help="of the suite; all unless given")
    added.add_argument("--repeats", type=int, default=5, help="turns (5)")
    added.add_argument("--out", metavar="FILE", help="write the JSON report here")
    added = command(
        "table",
        table,
        "put results files side by side, and beside the paper's numbers where a recipe has them",
        "csezoo table model_cards/*/results.json --format latex",
    )
    added.add_argument("files", nargs="+", help="results.json of runs, or what evaluate --out wrote")
    added.add_argument("--format", default="markdown", choices=("markdown", "latex", "csv"))
    added = command(
        "cards",
        cards,
        "write the model cards of all recipes and measured runs, and their index",
        "csezoo cards --out model_cards --html site",
    )
    added.add_argument(
        "--out", default="model_cards", metavar="DIR", help="the directory of the cards (model_cards); runs lie in it"
    )
    added.add_argument("--html", metavar="DIR", help="write them as a static site too")
    added = command(
        "publish",
        publish,
        "check a finished run, push it to the Hub in one commit and read it back",
        "csezoo publish runs/quickstart --to my-name/my-model --private",
    )
    added.add_argument("run_directory", metavar="RUN", help="a run directory, or a repository directory itself")
    added.add_argument("--to", required=True, metavar="ORG/NAME", help="the Hub repository, made if it is not there")
    added.add_argument("--private", action="store_true", help="make a new repository private")
    added.add_argument("--create-pr", action="store_true", help="open a pull request, leave the main branch as it is")
    added.add_argument("--tag", help="name the commit, once it is read back")
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
        "verify",
        verify,
        "compare a repository with its fingerprint: checksums, token ids and vectors of when it was saved",
        "csezoo verify my-name/my-model --revision v1",
    )
    added.add_argument("repository", metavar="REPO", help="directory or Hub id")
    added.add_argument("--revision", help="branch, tag or commit on the Hub")
    added = command(
        "audit",
        audit,
        "read what a remote-code repository could do before you trust it; nothing of it is run",
        "csezoo audit somebody/their-model --revision main",
    )
    added.add_argument("repository", metavar="REPO", help="directory or Hub id")
    added.add_argument("--revision", help="branch, tag or commit on the Hub")
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
    from .results import ResultsFile

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
    file = ResultsFile(options.out, options.model, receipt["model_sha256"]) if options.out else None
    suites = options.suite or ([] if options.pairs else ["sts"])
    scored = run_suites(
        encode,
        suites,
        options.data,
        receipt=receipt,
        queries=options.queries,
        pairs=options.pairs,
        file=file,
    )
    print(format_report(Path(options.model).name, scored["results"]))
    for task in [made["task"] for made in scored["results"] if made.get("as_released") is False]:
        print(f"warning: {task}: its data is not as released, or tokenised otherwise (checksum)", file=sys.stderr)


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


def benchmark(options) -> None:
    import json

    from .benchmarks import BENCHMARKS, format_benchmark

    if options.out:
        check_out(options.out)
    chosen = {"tasks": options.tasks} if options.tasks else {}
    run = BENCHMARKS[options.what]
    measured = run(options.model, options.pooling, options.data, repeats=options.repeats, **chosen)
    report = {"command": options.command, **measured}
    print(format_benchmark(report))
    if options.out:
        Path(options.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def glue(options) -> None:
    import json

    from transformers.utils import logging

    from .glue import FineTuning, run_glue
    from .tables import column

    if options.out:
        check_out(options.out)
    logging.set_verbosity_error()  # of the head, which no checkpoint has
    logging.disable_progress_bar()
    settings = FineTuning(
        options.learning_rate, options.epochs, options.batch_size, options.max_length, options.dev_share
    )
    report = run_glue(
        options.model,
        options.tasks,
        options.data,
        seeds=options.seeds,
        settings=settings,
        progress=sys.stderr.isatty(),
    )
    if options.out:
        Path(options.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if "summary" in report:
        for made in report["summary"]:
            print(f"{made['task']:<24} {made['mean']:6.2f} ± {made['sd']:.2f} ({made['n']} seeds)")
    else:
        for made in report["results"]:
            print(f"{column(made):<24} {made['value']:6.2f}")


def table(options) -> None:
    from .tables import format_rows, read_rows

    print(format_rows([row for file in options.files for row in read_rows(file)], options.format))


def cards(options) -> None:
    from .cards import write_cards

    made = write_cards(Path(options.out))
    print(f"{options.out}: {sum(entry.card is not None for entry in made)} cards")
    if options.html:
        from .website import write_website

        write_website(Path(options.out), made, Path(options.html))
        print(Path(options.html) / "index.html")


def portrait(options) -> None:
    from .portraits import PORTRAITS

    check_picture(options.out)
    PORTRAITS[options.of](options.model, options.pooling, options.data, options.out)
    print(options.out)


def publish(options) -> None:
    from .publishing import publish as push

    choices = {"private": options.private, "create_pr": options.create_pr, "tag": options.tag}
    print(push(options.run_directory, options.to, **choices, report=partial(print, flush=True)))


def export(options) -> None:
    from .exporting import export as write

    for way, difference in write(options.checkpoint, options.to, onnx=options.onnx).items():
        print(f"{way:<24} gives the same vectors, to {difference:.0e}")
    print(options.to)


def quiet_transformers() -> None:
    """What is loaded is judged here: neither bars nor warnings of the library."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def verify(options) -> None:
    from .verification import verify_repository

    quiet_transformers()
    for line in verify_repository(options.repository, options.revision):
        print(line)


def audit(options) -> None:
    from .auditing import audit_repository

    read, findings = audit_repository(options.repository, options.revision)
    for finding in findings:
        print(finding)
    if findings:
        raise UserError(f"{len(findings)} finding(s) in {read}: read those lines before you trust it")
    print(f"no findings in {read}")


def weakened(options) -> None:
    from .pictures import draw_weakened_tokens
    from .weakened import weakened_tokens

    check_picture(options.out)
    quiet_transformers()  # on the base model, whose weights the checkpoint replaces
    draw_weakened_tokens(weakened_tokens(options.run_directory, options.sentences, seed=options.seed), options.out)
    print(options.out)


if __name__ == "__main__":
    main()
