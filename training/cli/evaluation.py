"""Commands that score a model: evaluate, mteb, compare, glue."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..environment import quiet_transformers
from ..errors import UserError, refuse_bytes
from ..evaluation.tasks.names import SUITES
from .options import SENTEVAL, Command, add_encoder_options, refuse_unwritable, whole

if TYPE_CHECKING:
    from ..evaluation.suites import Task
    from ..evaluation.tasks.search import SearchTask


def add_commands(command: Command) -> None:
    added = command(
        "evaluate",
        evaluate,
        "score a model, and write the results with their receipts: data, model and library versions",
        "csezoo evaluate runs/quickstart/best --suite sts --data SentEval/data --out result.json",
    )
    suites = f"{', '.join(SUITES)}; sts is the default, unless --pairs is given"
    added.add_argument("--suite", nargs="+", metavar="SUITE", help=suites)
    pairs = "your own CSV files with the columns sentence1, sentence2 and score; each file is one task"
    added.add_argument("--pairs", nargs="+", default=[], metavar="FILE.csv", help=pairs)
    queries = "sentences for which the suite retrieval prints the nearest neighbours"
    added.add_argument("--queries", nargs="+", metavar="SENTENCE", help=queries)
    added.add_argument("--data", **SENTEVAL)
    out = "write the results to this JSON file after every task; tasks that are already in it are skipped"
    added.add_argument("--out", metavar="FILE", help=out)
    style = "mteb: also write the folder that MTEB's results repository takes; needs --data hub"
    added.add_argument("--format", choices=("mteb",), help=style)
    added.add_argument("--to", metavar="DIR", help="with --format: the folder")
    added.add_argument("--name", metavar="ORG/NAME", help="with --format: the model's name in the folder")
    add_encoder_options(added)
    added = command(
        "mteb",
        mteb,
        "run MTEB's own tasks on a model, and write the folder that MTEB's results repository takes",
        "csezoo mteb runs/quickstart/best --tasks STS12 STSBenchmark --to mteb-results --name my-name/my-model",
    )
    added.add_argument("--tasks", nargs="+", required=True, metavar="TASK", help="names of MTEB's tasks")
    added.add_argument("--to", required=True, metavar="DIR", help="the folder; tasks that are in it are not run again")
    own = "a directory with MTEB's data sets at their paths, such as DIR/mteb/sts12-sts/test.csv (default: the Hub)"
    added.add_argument("--data", metavar="DIR", help=own)
    added.add_argument("--name", metavar="ORG/NAME", help="the model's name in the folder (default: its Hub id)")
    add_encoder_options(added)
    added = command(
        "compare",
        compare,
        "test whether a new model is better than an old one, with a paired bootstrap over pairs or queries",
        "csezoo compare sentence-transformers/all-MiniLM-L6-v2 runs/adapted/best --pairs pairs.csv",
    )
    added.add_argument("old", metavar="OLD", help="directory or Hub id, as for evaluate")
    added.add_argument("new", metavar="NEW", help="directory or Hub id, as for evaluate")
    suites = "sts, sts-dev, sts-length, sts-multilingual, sts-spanish, chinese; sts is the default, unless pairs, "
    suites += "queries or sentences are given"
    added.add_argument("--suite", nargs="+", default=[], metavar="SUITE", help=suites)
    pairs = "your own CSV files with the columns sentence1, sentence2 and score; each file is one task"
    added.add_argument("--pairs", nargs="+", default=[], metavar="FILE.csv", help=pairs)
    queries = "your own search: a CSV file with the columns query and passage, a passage that answers the query"
    added.add_argument("--queries", metavar="FILE.csv", help=queries)
    passages = "with --queries: a text file with further passages to search, one on each line"
    added.add_argument("--passages", metavar="FILE.txt", help=passages)
    sentences = "without any labels: sentences that neither model was trained on, one on each line; a weak criterion"
    added.add_argument("--sentences", metavar="FILE.txt", help=sentences)
    added.add_argument("--data", **SENTEVAL)
    pooling = "the pooling of each of the two models; `own` for a model that defines its pooling itself"
    added.add_argument("--pooling", nargs=2, metavar="POOLING", help=pooling)
    added.add_argument("--resamples", type=whole(100), default=1000, help="bootstrap samples per task (default: 1000)")
    added = command(
        "glue",
        glue,
        "fine-tune a model on GLUE tasks and score it on their dev sets",
        "csezoo glue runs/quickstart/best --tasks MRPC RTE --data GLUE --seeds 1 2 3 --out glue.json",
    )
    models = "directory or Hub id: a model of the zoo, whose backbone is fine-tuned, or of transformers"
    added.add_argument("model", metavar="MODEL", help=models)
    names = "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI"
    added.add_argument("--tasks", nargs="+", required=True, metavar="TASK", help=names)
    data = "hub (default), or a directory in GLUE's layout: MRPC/train.tsv, …"
    added.add_argument("--data", default="hub", help=data)
    rate = "learning rate of AdamW; it falls linearly to 0 (default: 2e-5)"
    added.add_argument("--learning_rate", type=float, default=2e-5, help=rate)
    added.add_argument("--epochs", type=float, default=3, help="passes over the training set (default: 3)")
    added.add_argument("--batch_size", type=int, default=32, help="examples per optimizer step (default: 32)")
    length = "longest input in word pieces; longer ones are cut (default: 128)"
    added.add_argument("--max_length", type=int, default=128, help=length)
    share = "share of the dev set that selects the best epoch, while the rest is the test set; with 0 the last epoch "
    share += "is scored on the entire dev set (default: 0; SG-OPT used 0.1)"
    added.add_argument("--dev_share", type=float, default=0.0, help=share)
    seeds = "fine-tune once per seed (default: 42)"
    added.add_argument("--seeds", type=int, nargs="+", default=[42], metavar="SEED", help=seeds)
    out = "write the results to this JSON file after every run; runs that are already in it are skipped"
    added.add_argument("--out", metavar="FILE", help=out)


def evaluate(options: argparse.Namespace) -> None:
    from ..cards.results_files import model_name
    from ..evaluation.encoders import load_encoder, recipe_of
    from ..evaluation.report import format_report
    from ..evaluation.results import ResultsFile
    from ..evaluation.suites import evaluate as run_suites
    from ..recipes import origin

    refuse_bytes("queries", " ".join(options.queries or []))
    if options.out:
        refuse_unwritable(options.out)
    if bool(options.format) != bool(options.to):
        raise UserError("format: --format mteb and --to DIR belong together; give both or neither")
    if options.name is not None and not options.format:
        raise UserError("name: it is the model's name in the folder of --format mteb; give that too")
    if options.format:
        from ..evaluation.mteb_tasks import refuse_format

        refuse_format(options.data, options.model, options.name)
    quiet_transformers()
    encode, receipt = load_encoder(
        options.model,
        pooling=options.pooling,
        batch_size=options.batch_size,
        dtype=options.dtype,
        progress=sys.stderr.isatty(),
    )
    file = None
    if options.out:
        recipe = recipe_of(options.model)
        file = ResultsFile(options.out, options.model, receipt["model_sha256"], origin(recipe) if recipe else {})
    suites = options.suite or ([] if options.pairs else ["sts"])
    scored = run_suites(
        encode, suites, options.data, receipt=receipt, queries=options.queries, pairs=options.pairs, file=file
    )
    print(format_report(model_name(options.model), scored["results"]))
    if options.format:
        from ..evaluation.mteb_tasks import write_results

        print(write_results(scored["results"], options.to, options.model, receipt, encode, options.name))
    for task in [result["task"] for result in scored["results"] if result.get("as_released") is False]:
        message = f"warning: {task}: the data differs from the released data, or is tokenised differently (checksum)"
        print(message, file=sys.stderr)


def mteb(options: argparse.Namespace) -> None:
    from ..evaluation.mteb_tasks import run_mteb

    quiet_transformers()
    choices = {"pooling": options.pooling, "batch_size": options.batch_size, "dtype": options.dtype}
    results = run_mteb(options.model, options.tasks, options.to, data=options.data, name=options.name, **choices)
    for result in results:
        print(f"{result['task']:<24} {result['metric']} {result['value']:.2f}")
    print(options.to)


def compare(options: argparse.Namespace) -> None:
    from ..evaluation.encoders import load_encoder
    from ..evaluation.significance import compare as bootstrap
    from ..evaluation.significance import format_comparison
    from ..evaluation.suites import load_suites
    from ..evaluation.tasks.search import load_search
    from ..evaluation.tasks.sts import load_pairs_file
    from ..tuning.criteria import compare_without_labels
    from ..tuning.objectives import read_sentences

    if options.passages and not options.queries:
        raise UserError("--passages: they are searched for the passages of --queries; give that too")
    labelled = bool(options.pairs or options.queries or options.suite)
    if options.sentences and labelled:
        raise UserError("--sentences: labels are the better judge; leave it out, or give nothing else")
    suites = options.suite or ([] if labelled or options.sentences else ["sts"])
    if options.data != "hub" and not suites:
        raise UserError("--data: only suites read it; give --suite, or leave it out")
    quiet_transformers()
    tasks: list[Task | SearchTask] = [load_pairs_file(path) for path in options.pairs]
    tasks += [load_search(options.queries, options.passages)] if options.queries else []
    tasks += [task for suite in load_suites(suites, options.data).values() for task in suite]
    sentences = read_sentences(options.sentences) if options.sentences else []
    poolings = [None if pooling == "own" else pooling for pooling in options.pooling or ("own", "own")]
    models = zip((options.old, options.new), poolings, strict=True)
    bar = sys.stderr.isatty()
    old, new = (load_encoder(model, pooling=pooling, progress=bar)[0] for model, pooling in models)
    print(f"old  {options.old}\nnew  {options.new}")
    if sentences:
        print(compare_without_labels(old, new, sentences))
    else:
        print(format_comparison(bootstrap(old, new, tasks, resamples=options.resamples, progress=bar)))


def glue(options: argparse.Namespace) -> None:
    from ..cards.results_files import over_seeds
    from ..evaluation.glue.fine_tuning import FineTuning, run_glue
    from ..tables import mean_and_deviation

    if options.out:
        refuse_unwritable(options.out)
    quiet_transformers()  # else it warns that the classification head is new
    settings = FineTuning(
        options.learning_rate, options.epochs, options.batch_size, options.max_length, options.dev_share
    )
    results = run_glue(
        options.model,
        options.tasks,
        options.data,
        seeds=options.seeds,
        settings=settings,
        out=options.out,
        progress=sys.stderr.isatty(),
    )
    for name, values in over_seeds(results).items():
        print(f"{name:<24} {mean_and_deviation(values)}" + (f" ({len(values)} seeds)" if len(values) > 1 else ""))
