"""Commands that make, publish or check a repository: publish, export, convert, verify, audit."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from ..environment import quiet_transformers
from ..errors import UserError
from .options import Command

KINDS = "what wrote it, if it is not one of the released checkpoints: simcse-unsup, simcse-sup, diffcse, "
KINDS += "promptbert-unsup, promptbert-sup, diffaug, consert; base for a pre-trained model, to have it as safetensors"


def add_commands(command: Command) -> None:
    added = command(
        "publish",
        publish,
        "check a run, push it to the Hub in one commit, then download it again and compare",
        "csezoo publish runs/quickstart --to my-name/my-model --private",
    )
    added.add_argument("run_directory", metavar="RUN", help="a run directory, or a repository directory itself")
    to = "the Hub repository; it is created if it does not exist"
    added.add_argument("--to", required=True, metavar="ORG/NAME", help=to)
    added.add_argument("--private", action="store_true", help="create the repository as a private one")
    added.add_argument("--create-pr", action="store_true", help="open a pull request instead of changing main")
    added.add_argument("--tag", help="tag for the commit, set after the downloaded files have been compared")
    adapter = "publish what LoRA has changed, in PEFT's format, instead of the complete model: of a run with a "
    adapter += "lora_rank, or the directory of an adapter"
    added.add_argument("--adapter", action="store_true", help=adapter)
    base = "with --adapter: the Hub id of the base model, if the run was trained on a copy of it in a directory"
    added.add_argument("--base", metavar="ORG/NAME", help=base)
    added = command(
        "merge",
        merge,
        "make the complete repository of an adapter and its base model, and compare it with its fingerprint",
        "csezoo merge simcse-sup-all-minilm-l6 --to merged",
    )
    names = "an adapter of the zoo by its name, a directory, or a Hub id"
    added.add_argument("adapter", metavar="ADAPTER", help=names)
    added.add_argument("--to", required=True, metavar="DIR", help="a new directory")
    base = "directory or Hub id of the base model (default: the one that the adapter names)"
    added.add_argument("--base", metavar="MODEL", help=base)
    added = command(
        "export",
        export,
        "copy a published repository, with other formats beside the model: ONNX, int8, shorter vectors",
        "csezoo export runs/quickstart --to quickstart-onnx --onnx",
    )
    added.add_argument("checkpoint", metavar="RUN", help="a run directory, a repository directory or a Hub id")
    added.add_argument("--to", required=True, metavar="DIR", help="a new directory")
    onnx = "write onnx/model.onnx, and compare its vectors with the model's"
    added.add_argument("--onnx", action="store_true", help=onnx)
    truncate_dim = "serve the first K dimensions, for a model trained with matryoshka_dims or whitened"
    added.add_argument("--truncate_dim", type=int, metavar="K", help=truncate_dim)
    quantize = "also write onnx/model_int8.onnx, and say on the card what it saves and costs"
    added.add_argument("--quantize", choices=("int8",), help=quantize)
    openvino = "with --quantize: also write an int8 file for OpenVINO, openvino/openvino_model_qint8_quantized.xml"
    added.add_argument("--openvino", action="store_true", help=openvino)
    data = "with --quantize: `hub` or a directory in SentEval's layout, to measure the cost on the seven STS tasks"
    added.add_argument("--data", metavar="hub|DIR", help=data)
    added = command(
        "convert",
        convert,
        "make a repository of the zoo from a checkpoint that a paper's authors released or that their code wrote",
        "csezoo convert princeton-nlp/sup-simcse-bert-base-uncased --to sup-simcse",
    )
    added.add_argument("model", metavar="MODEL", help="directory or Hub id")
    added.add_argument("--to", required=True, metavar="DIR", help="a new directory")
    added.add_argument("--as", dest="kind", metavar="KIND", help=KINDS)
    ways = "how promptbert-sup is served: sts (default), sts-pretrained or transfer; see the documentation"
    added.add_argument("--serving", metavar="NAME", help=ways)
    added.add_argument("--revision", help="branch, tag or commit on the Hub")
    added = command(
        "verify",
        verify,
        "compare a repository with its fingerprint: the checksums, token ids and vectors stored when it was saved",
        "csezoo verify my-name/my-model --revision v1",
    )
    add_repository_options(added)
    added = command(
        "audit",
        audit,
        "list the files of a repository that are not csezoo's own and could run something; nothing is run",
        "csezoo audit somebody/their-model --revision main",
    )
    add_repository_options(added)


def add_repository_options(added: argparse.ArgumentParser) -> None:
    added.add_argument("repository", metavar="REPO", help="directory or Hub id")
    added.add_argument("--revision", help="branch, tag or commit on the Hub")


def publish(options: argparse.Namespace) -> None:
    from ..publishing.publish import publish as push
    from ..publishing.publish import refuse_target

    quiet_transformers()
    run = Path(options.run_directory)
    if (run / "best_weights").is_dir() and (run / "recipe.yaml").is_file() and not (run / "results.json").is_file():
        from ..loop.runs import write_unfinished

        refuse_target(options.to)  # before minutes of work
        print(f"written   {run / 'best'}, the best of the first {write_unfinished(run)} updates", flush=True)
    choices = {"private": options.private, "create_pr": options.create_pr, "tag": options.tag}
    choices |= {"adapter": options.adapter, "base": options.base}
    print(push(options.run_directory, options.to, **choices, report=partial(print, flush=True)))


def merge(options: argparse.Namespace) -> None:
    from ..publishing.adapters import merge_adapter

    quiet_transformers()
    merge_adapter(options.adapter, options.to, base=options.base, report=partial(print, flush=True))
    print(options.to)


def export(options: argparse.Namespace) -> None:
    from ..publishing.export import export as write

    choices = {"onnx": options.onnx, "truncate_dim": options.truncate_dim}
    choices |= {"quantize": options.quantize, "openvino": options.openvino, "data": options.data}
    write(options.checkpoint, options.to, **choices, report=print)
    print(options.to)


def convert(options: argparse.Namespace) -> None:
    from ..converting import base_models
    from ..converting.convert import convert as write

    report = partial(print, flush=True)
    if options.kind == base_models.KIND:
        if options.serving:
            raise UserError("--serving: a pre-trained model is not served; leave the option out")
        base_models.convert_base(options.model, options.to, revision=options.revision, report=report)
        return
    choices = {"kind": options.kind, "serving": options.serving, "revision": options.revision}
    write(options.model, options.to, **choices, report=report)


def verify(options: argparse.Namespace) -> None:
    from ..publishing.fingerprints import verify_repository

    quiet_transformers()
    for line in verify_repository(options.repository, options.revision):
        print(line)


def audit(options: argparse.Namespace) -> None:
    from ..publishing.audit import audit_repository

    audited, findings = audit_repository(options.repository, options.revision)
    for finding in findings:
        print(finding)
    if findings:
        raise UserError(f"{len(findings)} finding(s) in {audited}: read those lines before you trust it")
    print(f"no findings in {audited}")
