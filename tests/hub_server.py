"""A Hub on the loopback interface, for tests with the real client, `huggingface_hub`, in a separate process.

The server keeps repositories in memory and implements the part of the Hub's HTTP API that publishing and loading need.
Environment variables, which `huggingface_hub` reads when it is imported, point a client to it:

    with HubServer() as hub:
        subprocess.run(command, env={**os.environ, **hub.environment(cache)})
        hub.repos["org/name"][-1].files["config.json"]
"""

import base64
import hashlib
import json
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_dummy"


@dataclass
class Commit:
    id: str
    message: str
    files: dict[str, bytes]


class HubServer(ThreadingHTTPServer):
    """The state of the Hub, which tests may change.

    Attributes:
        repos: the commits of each repository, oldest first. The Hub makes the first one, with `.gitattributes`.
        private: names of the private repositories.
        refs: tags and pull requests (`refs/pr/1`) of each repository, and the commit of each.
        failures: `{"/commit/": 503}` fails every request whose path contains this text, with this status.
        cuts: `{"/commit/": "before"}` drops the connection of every request whose path contains this text, "before" or
            "after" the request is carried out.
        slow: `{"/resolve/": 0.1}` answers every request whose path contains this text with a byte every 0.1 seconds.
        corrupt: paths of files that the Hub serves with a wrong last byte.
        requests: `METHOD path` of every request, in order.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, list[Commit]] = {}
        self.private: set[str] = set()
        self.refs: dict[str, dict[str, Commit]] = {}
        self.failures: dict[str, int] = {}
        self.cuts: dict[str, str] = {}
        self.slow: dict[str, float] = {}
        self.corrupt: set[str] = set()
        self.requests: list[str] = []
        self.objects: dict[str, bytes] = {}  # LFS objects by SHA-256, uploaded before they are committed
        self.lock = threading.RLock()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self, home: os.PathLike, **more: str) -> dict[str, str]:
        """Environment variables that point a client to this server, with its cache in `home`, and `more` variables."""
        variables = {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
        # Xet is a second protocol for the same files, which needs another server.
        variables |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
        return variables | more

    def commit(self, repo: str, message: str, files: dict[str, bytes], pull_request: str | None = None) -> Commit:
        """Add a commit with a new id. Clients cache forever which files a commit has and which it lacks."""
        history = self.repos.setdefault(repo, [])
        state = repr((repo, [earlier.id for earlier in history], message, files))
        commit = Commit(hashlib.sha1(state.encode()).hexdigest(), message, files)
        if pull_request:
            self.refs.setdefault(repo, {})[pull_request] = commit
        else:
            history.append(commit)
        return commit


class Refusal(Exception):
    """An error answer of the Hub: HTTP status, `X-Error-Code`, message."""


def is_lfs(path: str) -> bool:
    return path.endswith(".safetensors")


def lfs(path: str, content: bytes) -> dict:
    """The additional fields in the Hub's description of an LFS file."""
    if not is_lfs(path):
        return {}
    oid = object_id(path, content)
    return {"lfs": {"oid": oid, "sha256": oid, "size": len(content), "pointerSize": 134}}


def object_id(path: str, content: bytes) -> str:
    """The id that the client compares with its local file: SHA-256 for an LFS file, Git's SHA-1 for any other."""
    return hashlib.sha256(content).hexdigest() if is_lfs(path) else git_hash(content)


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class SlowFile:
    """Sends a byte, waits, and so on, until the client is gone."""

    def __init__(self, file, pause: float):
        self.file, self.pause = file, pause

    def write(self, data: bytes) -> None:
        with suppress(ConnectionError):
            for byte in data:
                self.file.write(bytes([byte]))
                time.sleep(self.pause)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def answer(self) -> None:
        """Find the route of a request and answer with JSON or with the bytes of a file."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        path, self.query = unquote(url.path), parse_qs(url.query)
        cut = next((when for piece, when in self.server.cuts.items() if piece in path), None)
        try:
            with self.server.lock:
                self.server.requests.append(f"{self.command} {path}")
                if cut == "before":
                    return self.hang_up()
                for piece, status in self.server.failures.items():
                    if piece in path:
                        raise Refusal(status, "", "the test asked for this failure")
                for methods, pattern, route in ROUTES:
                    if self.command in methods and (match := re.fullmatch(pattern, path)):
                        answer = route(self, **match.groupdict())
                        if cut == "after":
                            return self.hang_up()
                        break
                else:
                    raise Refusal(404, "", f"no such page: {path}")
            self.send(*answer)  # without the lock, because it may take long
        except Refusal as refusal:
            status, code, message = refusal.args
            self.send({"error": message}, {"X-Error-Code": code, "X-Error-Message": message}, status)

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def hang_up(self) -> None:
        self.close_connection = True

    def send(self, content: bytes | dict | list, headers: dict[str, str] | None = None, status: int = 200) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        pause = next((pause for piece, pause in self.server.slow.items() if piece in self.path), None)
        file = self.wfile
        if pause is not None:
            self.wfile = SlowFile(file, pause)
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile = file

    def log_message(self, *_):
        pass

    def authenticate(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refusal(401, "", "Invalid username or password.")

    def revision(self, repo: str, revision: str | None = None) -> Commit:
        """The newest commit of a repository, or the one with this id, tag or pull request."""
        if repo not in self.server.repos:
            raise Refusal(404, "RepoNotFound", "Repository not found")
        if repo in self.server.private:
            self.authenticate()
        commits = self.server.repos[repo]
        if revision in self.server.refs.get(repo, {}):
            return self.server.refs[repo][revision]
        for commit in (*commits, *self.server.refs.get(repo, {}).values()):
            if commit.id == revision:
                return commit
        if revision not in (None, "main"):
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commits[-1]

    # Publishing, in the order of the client's requests.

    def create_repo(self):
        self.authenticate()
        request = json.loads(self.body)
        repo = f"{request['organization']}/{request['name']}"
        if repo in self.server.repos:
            raise Refusal(409, "", "You already created this model repo")
        if request.get("visibility") == "private":
            self.server.private.add(repo)
        self.server.commit(repo, "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})
        return ({"url": f"{self.server.url}/{repo}"},)

    def validate_yaml(self):
        return ({"errors": [], "warnings": []},)

    def preupload(self, repo: str, revision: str):
        """Answer how to upload each file, with its current id, so that the client skips unchanged files."""
        self.authenticate()
        known = self.revision(repo, revision).files
        answers = []
        for path in (file["path"] for file in json.loads(self.body)["files"]):
            mode = "lfs" if is_lfs(path) else "regular"
            oid = object_id(path, known[path]) if path in known else None
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return ({"files": answers},)

    def lfs_batch(self, repo: str):
        """Answer where to upload each object. A known object gets no upload action."""
        self.authenticate()
        objects = json.loads(self.body)["objects"]
        for each in objects:
            if each["oid"] not in self.server.objects:
                each["actions"] = {"upload": {"href": f"{self.server.url}/upload/{each['oid']}"}}
        return ({"transfer": "basic", "objects": objects},)

    def lfs_upload(self, oid: str):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refusal(400, "", "the content does not have this SHA-256")
        self.server.objects[oid] = self.body
        return ({},)

    def commit(self, repo: str, revision: str):
        """Read newline-delimited JSON (a header, then one operation per line) and commit it."""
        self.authenticate()
        head = self.revision(repo, revision)
        header, *operations = (json.loads(line) for line in self.body.splitlines())
        if header["value"].get("parentCommit", head.id) != head.id:
            raise Refusal(412, "", "A commit has happened since. Please refresh and try again.")
        files = dict(head.files)
        for kind, value in ((operation["key"], operation["value"]) for operation in operations):
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
        number = len(self.server.refs.get(repo, {})) + 1
        pull_request = f"refs/pr/{number}" if "create_pr" in self.query else None
        commit = self.server.commit(repo, header["value"]["summary"], files, pull_request)
        url = f"{self.server.url}/{repo}"
        answer = {"success": True, "commitOid": commit.id, "commitUrl": f"{url}/commit/{commit.id}"}
        return (answer | ({"pullRequestUrl": f"{url}/discussions/{number}"} if pull_request else {}),)

    def create_tag(self, repo: str, revision: str):
        self.authenticate()
        commit, tags = self.revision(repo, revision), self.server.refs.setdefault(repo, {})
        tag = json.loads(self.body)["tag"]
        if tag in tags:
            raise Refusal(409, "", "Tag reference exists already")
        tags[tag] = commit
        return ({},)

    def list_refs(self, repo: str):
        head = self.revision(repo)
        tags = [
            {"name": name, "ref": f"refs/tags/{name}", "targetCommit": commit.id}
            for name, commit in self.server.refs.get(repo, {}).items()
            if not name.startswith("refs/")
        ]
        branches = [{"name": "main", "ref": "refs/heads/main", "targetCommit": head.id}]
        return ({"branches": branches, "converts": [], "tags": tags},)

    # Loading.

    def info(self, repo: str, revision: str | None = None):
        commit = self.revision(repo, revision)
        siblings = [
            {"rfilename": path, "size": len(content), "blobId": git_hash(content), **lfs(path, content)}
            for path, content in commit.files.items()
        ]
        return ({"id": repo, "sha": commit.id, "private": repo in self.server.private, "siblings": siblings},)

    def tree(self, repo: str, revision: str, folder: str | None = None):
        """List the files and folders directly in a folder, or with `recursive` all files below it."""
        top = f"{folder}/" if folder else ""
        recursive = "recursive=true" in urlsplit(self.path).query.lower()
        entries = {}
        for path, content in self.revision(repo, revision).files.items():
            name, _, below = path.removeprefix(top).partition("/")
            if path.startswith(top) and below and not recursive:
                entries[top + name] = {"type": "directory", "path": top + name, "size": 0, "oid": ""}
            elif path.startswith(top):
                entry = {"type": "file", "path": path, "size": len(content), "oid": object_id(path, content)}
                entries[path] = entry | lfs(path, content)
        return (list(entries.values()),)

    def resolve(self, repo: str, revision: str, path: str):
        commit = self.revision(repo, revision)
        headers = {"X-Repo-Commit": commit.id}
        if path not in commit.files:
            # From the header, the client remembers that the file is not in this commit.
            return {"error": "Entry not found"}, {**headers, "X-Error-Code": "EntryNotFound"}, 404
        content = commit.files[path]
        headers["ETag"] = f'"{object_id(path, content)}"'
        return content[:-1] + b"?" if path in self.server.corrupt else content, headers


REPO, REVISION = r"(?P<repo>[^/]+/[^/]+)", r"(?P<revision>refs/pr/\d+|[^/]+)"
ROUTES = [
    (("POST",), "/api/repos/create", Handler.create_repo),
    (("POST",), "/api/validate-yaml", Handler.validate_yaml),
    (("POST",), f"/api/models/{REPO}/preupload/{REVISION}", Handler.preupload),
    (("POST",), rf"/{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (("PUT",), "/upload/(?P<oid>[0-9a-f]{64})", Handler.lfs_upload),
    (("POST",), f"/api/models/{REPO}/commit/{REVISION}", Handler.commit),
    (("GET",), f"/api/(models|datasets)/{REPO}(/revision/{REVISION})?", Handler.info),
    (("GET",), f"/api/(models|datasets)/{REPO}/tree/{REVISION}(/(?P<folder>.+))?", Handler.tree),
    (("GET", "HEAD"), f"(/datasets)?/{REPO}/resolve/{REVISION}/(?P<path>.+)", Handler.resolve),
    (("GET",), f"/api/models/{REPO}/refs", Handler.list_refs),
    (("POST",), f"/api/models/{REPO}/tag/{REVISION}", Handler.create_tag),
]
