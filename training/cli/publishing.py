"""Commands that hand a model on, and check one that was handed on: publish, export, verify, audit."""

from __future__ import annotations

import argparse
from functools import partial

from ..environment import quiet_transformers
from ..errors import UserError
from .options import Command


def add_commands(command: Command) -> None:
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


def publish(options: argparse.Namespace) -> None:
    from ..publishing.publish import publish as push

    choices = {"private": options.private, "create_pr": options.create_pr, "tag": options.tag}
    print(push(options.run_directory, options.to, **choices, report=partial(print, flush=True)))


def export(options: argparse.Namespace) -> None:
    from ..publishing.export import export as write

    for way, difference in write(options.checkpoint, options.to, onnx=options.onnx).items():
        print(f"{way:<24} gives the same vectors, to {difference:.0e}")
    print(options.to)


def verify(options: argparse.Namespace) -> None:
    from ..publishing.fingerprints import verify_repository

    quiet_transformers()
    for line in verify_repository(options.repository, options.revision):
        print(line)


def audit(options: argparse.Namespace) -> None:
    from ..publishing.audit import audit_repository

    read, findings = audit_repository(options.repository, options.revision)
    for finding in findings:
        print(finding)
    if findings:
        raise UserError(f"{len(findings)} finding(s) in {read}: read those lines before you trust it")
    print(f"no findings in {read}")
