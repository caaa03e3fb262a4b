"""Publishing a finished model: checked, in one commit, and read back."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from json import JSONDecodeError
from pathlib import Path
from typing import cast

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalEntryNotFoundError
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import disable_progress_bars, logging
from huggingface_hub.utils.sha import git_hash

from ..errors import UserError
from ..hub import differing_files, sha256
from .staging import check_as_a_stranger, check_files, hidden, stage

Operation = CommitOperationAdd | CommitOperationDelete

WAYS_OUT = {
    401: "the token is not valid, log in again with `hf auth login` or set HF_TOKEN",
    403: "the token may not write there, take one that may from https://huggingface.co/settings/tokens",
    404: "check the spelling, and that the token may see the repository",
    412: "somebody else changed it meanwhile, look at it and publish again",
    429: "too many requests, wait and publish again",
}
# What the client raises; HTTPError is its HTTP library's, whichever that is. As text these may quote the token: only
# `_explain` makes text of them.
ERRORS = (HTTPError, OSError, RuntimeError, ValueError)


def publish(
    run: str,
    to: str,
    *,
    private: bool = False,
    create_pr: bool = False,
    tag: str | None = None,
    message: str | None = None,
    report: Callable[[str], None] = print,
) -> str:
    """Make a Hub repository equal to a finished model in one commit, or in none if it already is, and read it back.

    In this order: stage every file as it will be published; check them (card, audit, checksums); compare with what the
    Hub has; load them in a process without csezoo and compare with the fingerprint; commit; download that commit and
    compare every byte; tag it. Until the commit nothing is visible (of a new repository: that it is there, empty), and
    the same call goes on after an interruption, whatever was reached; a pull request it would open again. Hidden files
    are left alone, here and there.

    Args:
        run: a run directory with `best/` in it, or a repository directory itself.
        to: `ORG/NAME`, made if it is not there; it takes the placeholder's place on the published card.
        private: make a new repository private; one that is there must be.
        create_pr: open a pull request with the commit instead of changing the main branch.
        tag: a name for the commit.
        message: of the commit.
        report: is given what was checked and what changes, a line each.

    Returns:
        The URL of the commit or the pull request.

    Raises:
        UserError: what is to be published is not in order, the name is none, or the Hub refuses, is out of reach, or
            gives back something else.

    Example:
        `publish("runs/quickstart", "my-name/my-model", private=True)`
    """
    if "/" not in to:
        raise UserError(f"--to: {to!r} has no owner, give ORG/NAME")
    if create_pr and tag:
        raise UserError(f"--tag {tag}: a pull request has no place yet, tag it once it is merged")
    logging.set_verbosity_error()  # the client's retries, with the signed addresses of uploads
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(library_name="csezoo", token=True)
    with tempfile.TemporaryDirectory() as directory:
        staged = Path(directory, "staged")
        stage(run, to, staged)
        report(check_files(staged))
        try:
            known = _find(api, to)
            tagged = _tagged(api, to, tag) if known and tag else None
        except ERRORS as error:
            raise UserError(_explain(error, to)) from None
        if private and known and not known.private:
            raise UserError(f"{to} is public: make it private in its settings on the Hub, or leave --private out")
        operations, plan = _compare(staged, {file.rfilename: file for file in known.siblings or []} if known else {})
        if known and tagged and (operations or tagged != known.sha):
            raise UserError(f"--tag {tag}: {to} has it on another commit, give another name")
        for line in plan:
            report(line)
        report(check_as_a_stranger(staged))
        sha, revision, url = _commit(api, to, known, operations, private, create_pr, message)
        try:
            report(_read_back(to, staged, sha, revision, Path(directory, "cache")))
            if tag and not tagged:
                api.create_tag(to, tag=tag, revision=sha)
        except ERRORS as error:
            raise UserError(f"the commit {sha} is there, publish again to go on: {_explain(error, to)}") from None
        return url


def _find(api: HfApi, to: str) -> ModelInfo | None:
    """What the Hub knows of a repository; `None` where there is none."""
    try:
        return api.model_info(to, files_metadata=True)
    except HfHubHTTPError as error:
        if error.response.status_code not in (401, 404):  # the Hub's ways to say that it is not there
            raise
    return None


def _tagged(api: HfApi, to: str, tag: str) -> str | None:
    """The commit that has a tag."""
    return {known.name: known.target_commit for known in api.list_repo_refs(to).tags}.get(tag)


def _compare(staged: Path, there: dict[str, RepoSibling]) -> tuple[list[Operation], list[str]]:
    """The operations that make a repository equal to the staged files, and a line for each."""
    names = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file())
    operations: list[Operation] = []
    plan = []
    for name in names:
        path = staged / name
        if name not in there or not _same(path, there[name]):
            operations.append(CommitOperationAdd(name, str(path)))
            plan.append(f"{'change' if name in there else 'add':<9} {name} ({path.stat().st_size:,} bytes)")
    for name in sorted(there.keys() - set(names)):
        if not hidden(name):
            operations.append(CommitOperationDelete(name))
            plan.append(f"{'delete':<9} {name}")
    return operations, plan or ["nothing changes"]


def _same(path: Path, there: RepoSibling) -> bool:
    """Whether the Hub has this very file, by the checksum it gives: of the content (LFS), or Git's."""
    if there.lfs:
        return sha256(path) == there.lfs.sha256
    return there.size == path.stat().st_size and git_hash(path.read_bytes()) == there.blob_id


def _commit(
    api: HfApi,
    to: str,
    known: ModelInfo | None,
    operations: list[Operation],
    private: bool,
    create_pr: bool,
    message: str | None,
) -> tuple[str, str, str]:
    """Commit; the commit's hash, the revision to read it back by, and the URL to show."""
    try:
        if known is None:
            api.create_repo(to, private=private or None, exist_ok=True)  # None: as the organisation prefers
        elif not operations:
            sha = cast(str, known.sha)  # of a repository that is there
            return sha, sha, f"{constants.ENDPOINT}/{to}/commit/{sha}"
        commit = api.create_commit(
            to,
            operations,
            commit_message=message or "Publish with csezoo",
            parent_commit=known.sha if known else None,  # what changes was decided from this state
            create_pr=create_pr,
        )
    except ERRORS as error:
        raise UserError(_explain(error, to)) from None
    return commit.oid, commit.pr_revision or commit.oid, commit.pr_url or commit.commit_url


def _read_back(to: str, staged: Path, sha: str, revision: str, cache: Path) -> str:
    """Download a commit into an empty cache and compare it with what was checked."""
    there = Path(snapshot_download(to, revision=revision, cache_dir=cache, token=True))
    if there.name != sha:
        raise UserError(f"{to} has the commit {there.name} where {sha} was made: somebody else changed it, look at it")
    files = {path.relative_to(staged).as_posix(): sha256(path) for path in staged.rglob("*") if path.is_file()}
    if problems := differing_files(there, files):
        raise UserError(f"the Hub gives back something else than the commit {sha}: {'; '.join(problems)}")
    return f"checked   {len(files)} files downloaded again are those that were published"


def _explain(error: BaseException, to: str) -> str:
    """One line with the way out."""
    # The client's, when a file's upload or download fails.
    if isinstance(error, RuntimeError | LocalEntryNotFoundError) and error.__cause__:
        error = error.__cause__
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        said = _one_line(error.server_message or error.response.reason_phrase)
        way_out = WAYS_OUT.get(status, "publish again later" if status >= 500 else "mend that and publish again")
        return f"the Hub refused {to} with {status} ({said}): {way_out}"
    if isinstance(error, HTTPError | JSONDecodeError):
        return f"{constants.ENDPOINT} is out of reach ({type(error).__name__}): check the network and HF_ENDPOINT"
    return f"{to} was not published: {_one_line(str(error))}"  # the client names the way out itself


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
