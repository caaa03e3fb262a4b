"""Publish a finished model: check it, push it in one commit, download it again and compare."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from json import JSONDecodeError
from pathlib import Path
from typing import cast

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalEntryNotFoundError
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import disable_progress_bars, logging, validate_repo_id
from huggingface_hub.utils.sha import git_hash

from ..errors import OutOfTimeError, UserError, one_line
from ..hub import differing_files, files_in, is_hidden, sha256, within_time
from .adapters import stage_adapter, verify_adapter
from .staging import EVAL_FILES, stage, verify_as_a_stranger, verify_files

Operation = CommitOperationAdd | CommitOperationDelete

WAYS_OUT = {
    401: "the token is not valid; log in again with `hf auth login` or set HF_TOKEN",
    403: "the token has no write access; create one with write access at https://huggingface.co/settings/tokens",
    404: "check the spelling, and whether the token can see the repository",
    412: "somebody else changed it in the meantime; check it and publish again",
    429: "too many requests; wait and publish again",
}
# What the client raises; HTTPError belongs to the HTTP library it uses. Their messages may quote the token, so only
# `_explain` turns them into text.
ERRORS = (HTTPError, OSError, RuntimeError, ValueError)


def publish(
    run: str,
    to: str,
    *,
    private: bool = False,
    create_pr: bool = False,
    tag: str | None = None,
    adapter: bool = False,
    base: str | None = None,
    report: Callable[[str], None] = print,
) -> str:
    """Make a Hub repository equal to a finished model with one commit, then download it again and compare.

    The steps:

    1. Stage every file as it will be published.
    2. Check the files: card, audit, checksums.
    3. Compare them with the files on the Hub. If nothing differs, there is no commit.
    4. Load them in a process without csezoo and compare token ids and vectors with the fingerprint.
    5. Commit.
    6. Download the commit and compare the checksum of every file.
    7. Tag the commit.

    Nothing is visible before the commit, except that a new repository exists and is empty. After an interruption, the
    same call completes the work; only a pull request would be opened a second time. Hidden files are neither uploaded
    nor deleted, except the test results on MTEB's data sets in `.eval_results`, which the Hub's leaderboards read.

    Args:
        run: a run directory with `best/` in it, or a repository directory itself.
        to: `ORG/NAME`, created if it does not exist. The published card shows this name.
        private: create the repository as a private one; an existing one must be private.
        create_pr: open a pull request with the commit instead of changing the main branch.
        adapter: publish what LoRA has changed, in PEFT's format, instead of the complete model. It is checked by
            merging it with its base model.
        base: with `adapter`, the Hub id of the base model, if the run was trained on a copy of it in a directory.
        report: called with one line for each check and for each file that changes.

    Returns:
        The URL of the commit or the pull request.

    Raises:
        UserError: a check fails, the name is not valid, the Hub refuses or cannot be reached or takes too long (see
            `within_time`), or the downloaded files differ.

    Example:
        `publish("runs/quickstart", "my-name/my-model", private=True)`
    """
    refuse_target(to)
    if base and not adapter:
        raise UserError("--base: only an adapter has one; give --adapter too")
    if create_pr and tag:
        raise UserError(f"--tag {tag}: a pull request cannot be tagged; tag the commit once it is merged")
    logging.set_verbosity_error()  # else the client logs retries with the signed URLs of uploads
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(library_name="csezoo", token=True)
    # A step that is out of time may still write into it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        staged = Path(directory, "staged")
        if adapter:
            stage_adapter(run, to, staged, base)
        else:
            stage(run, to, staged)
            report(verify_files(staged))
        try:
            known = within_time(f"the request for {to}", lambda: _find(api, to))
            tags = within_time(f"the request for {to}", lambda: api.list_repo_refs(to).tags) if known and tag else []
            tagged = next((known_tag.target_commit for known_tag in tags if known_tag.name == tag), None)
        except ERRORS as error:
            raise UserError(_explain(error, to)) from None
        if private and known and not known.private:
            raise UserError(f"{to} is public; make it private in its settings on the Hub, or leave out --private")
        operations, plan = _compare(staged, {file.rfilename: file for file in known.siblings or []} if known else {})
        if known and tagged and (operations or tagged != known.sha):
            raise UserError(f"--tag {tag}: {to} has this tag on another commit; give another name")
        for line in plan:
            report(line)
        report(verify_adapter(staged) if adapter else verify_as_a_stranger(staged))
        commit = partial(_commit, api, to, known, operations, private, create_pr)
        sha, revision, url = within_time(f"the commit to {to}", commit)
        made = f"commit {sha} was made but not checked; publish again to finish"
        try:
            check = partial(_read_back, to, staged, sha, revision, Path(directory, "cache"))
            report(within_time(f"the download of {to}", check))
            if tag and not tagged:
                made = f"commit {sha} was made and checked but has no tag; publish again to finish"
                within_time(f"the tag of {to}", lambda: api.create_tag(to, tag=tag, revision=sha))
        except ERRORS as error:
            raise UserError(f"{made}: {_explain(error, to)}") from None
        except OutOfTimeError as error:
            raise OutOfTimeError(f"{made}: {error}") from None
        return url


def refuse_target(to: str) -> None:
    """Refuse a name that no repository can have."""
    if "/" not in to:
        raise UserError(f"--to: {to!r} has no owner; give ORG/NAME")
    try:
        validate_repo_id(to)
    except HFValidationError as error:
        raise UserError(f"--to: {one_line(error)}") from None


def _find(api: HfApi, to: str) -> ModelInfo | None:
    """Return what the Hub knows about a repository; `None` if it does not exist."""
    try:
        return api.model_info(to, files_metadata=True)
    except HfHubHTTPError as error:
        if error.response.status_code not in (401, 404):  # both mean that there is no such repository
            raise
    return None


def _compare(staged: Path, there: dict[str, RepoSibling]) -> tuple[list[Operation], list[str]]:
    """Return the operations that make a repository equal to the staged files, and a line for each."""
    files = files_in(staged)
    operations: list[Operation] = []
    plan = []
    for name, path in files.items():
        if name not in there or not _same(path, there[name]):
            operations.append(CommitOperationAdd(name, str(path)))
            plan.append(f"{'change' if name in there else 'add':<9} {name} ({path.stat().st_size:,} bytes)")
    for name in sorted(there.keys() - files.keys()):
        if not is_hidden(name) or name in EVAL_FILES.values():  # those would be scores of other weights
            operations.append(CommitOperationDelete(name))
            plan.append(f"{'delete':<9} {name}")
    return operations, plan or ["nothing changes"]


def _same(path: Path, there: RepoSibling) -> bool:
    """Return whether the Hub has the same file, by its checksum: SHA-256 of an LFS file, else Git's blob id."""
    if there.lfs:
        return sha256(path) == there.lfs.sha256
    return there.size == path.stat().st_size and git_hash(path.read_bytes()) == there.blob_id


def _commit(
    api: HfApi, to: str, known: ModelInfo | None, operations: list[Operation], private: bool, create_pr: bool
) -> tuple[str, str, str]:
    """Create the repository and the commit where needed; return the commit's hash, its revision, and a URL."""
    try:
        if known is None:
            api.create_repo(to, private=private or None, exist_ok=True)  # None: the organisation's default
        elif not operations:
            sha = cast(str, known.sha)  # never None for an existing repository
            return sha, sha, f"{constants.ENDPOINT}/{to}/commit/{sha}"
        commit = api.create_commit(
            to,
            operations,
            commit_message="Publish with csezoo",
            parent_commit=known.sha if known else None,  # the operations are computed against this commit
            create_pr=create_pr,
        )
    except ERRORS as error:
        raise UserError(_explain(error, to)) from None
    return commit.oid, commit.pr_revision or commit.oid, commit.pr_url or commit.commit_url


def _read_back(to: str, staged: Path, sha: str, revision: str, cache: Path) -> str:
    """Download a commit into an empty cache and compare it with the staged files."""
    there = Path(snapshot_download(to, revision=revision, cache_dir=cache, token=True))
    if there.name != sha:
        raise UserError(
            f"{to}: expected commit {sha}, downloaded {there.name}: somebody else changed the repository; check it"
        )
    files = {name: sha256(path) for name, path in files_in(staged).items()}
    if problems := differing_files(there, files):
        raise UserError(f"the files downloaded from commit {sha} differ ({'; '.join(problems)}); publish again")
    return f"checked   {len(files)} downloaded files are the same"


def _explain(error: BaseException, to: str) -> str:
    """Return one line that says what went wrong and how to fix it."""
    # The client wraps what made an upload or a download fail.
    if isinstance(error, RuntimeError | LocalEntryNotFoundError) and error.__cause__:
        error = error.__cause__
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        message = one_line(error.server_message or error.response.reason_phrase)
        way_out = WAYS_OUT.get(status, "publish again later" if status >= 500 else "fix that and publish again")
        return f"the Hub refused {to} with {status} ({message}): {way_out}"
    if isinstance(error, HTTPError | JSONDecodeError):
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}): check the network and HF_ENDPOINT"
    return f"{to} was not published: {one_line(error)}"  # the client's message names the way out
