"""A stand-in of the model hub on loopback: what huggingface_hub and we ask of it, and nothing else.

Files of LARGE bytes and more are kept as the hub keeps weights: named by their hash, and handed out by another host.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sie_triton.contract.spec import Runtime
from sie_triton.models.weights import loadable
from tests.support.stages import spec

LARGE = 10_000
CHUNK = 16_384


BIG = bytes(range(256)) * 8192  # 2 MB
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"[1]",
    "model.safetensors": BIG,
    "onnx/model.onnx": b"x",
    "README.md": b"",
}


@dataclass(frozen=True)
class Asked:
    """Record of one request: `first` is the first byte of its range, `token` its Authorization header."""

    method: str
    path: str
    first: int
    token: str | None


@dataclass
class Hub:
    """Repositories by name, each a commit by revision; commits are directories' contents.

    `gated` ones are described, and their files refused. `refused`: what is answered for a repository instead, a status
    with X-Error-Code and X-Error-Message. `may_send` holds back all of a large file past `held_after` bytes; the first
    connection that has brought `cut_after` is closed; large files are said to have `size_said`. `silent`: nothing is
    answered at all. `ignores_ranges`: large files come whole, whatever part was asked for.
    """

    repos: dict[str, dict[str, str]] = field(default_factory=dict)
    commits: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    history: dict[str, set[str]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    refused: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    token: str | None = None
    silent: bool = False
    ignores_ranges: bool = False
    size_said: int = 0
    cut_after: int = 0
    held_after: int = 1 << 40
    may_send: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    asked: list[Asked] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    url: str = ""

    def put(self, repo: str, files: Mapping[str, bytes] | Path, revision: str = "main") -> str:
        """Commit, and let `revision` lead to the new commit."""
        if isinstance(files, Path):
            files = {str(path.relative_to(files)): path.read_bytes() for path in files.rglob("*") if path.is_file()}
        commit = hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = files
        self.history.setdefault(repo, set()).add(commit)
        self.repos.setdefault(repo, {})[revision] = commit
        return commit

    def commit_of(self, repo: str, revision: str) -> str | None:
        return revision if revision in self.history[repo] else self.repos[repo].get(revision)

    def num_asked(self, pattern: str, method: str = "GET") -> int:
        return sum(bool(re.search(pattern, each.path)) and each.method == method for each in self.asked)


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(self.path.partition("?")[0])
        first = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.first = int(first[1]) if first else 0
        hub.asked.append(Asked(self.command, path, self.first, self.headers.get("Authorization")))
        if hub.silent:
            hub.ended.wait(60)
            self.close_connection = True
        elif found := re.fullmatch(r"/api/models/([\w-]+/[\w.-]+)(?:/revision/(.+))?", path):
            self.describe(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([\w-]+/[\w.-]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/blobs/(\w+)", path):
            self.send_large(found[1])
        else:
            self.answer(404)

    do_HEAD = do_GET

    def is_refused(self, repo: str) -> bool:
        if repo in self.hub.renamed:
            location = self.path.replace(repo, self.hub.renamed[repo])
            self.answer(307, Location=location)
        elif repo in self.hub.refused:
            status, code, message = self.hub.refused[repo]
            self.answer(status, **{"X-Error-Code": code, "X-Error-Message": message})
        elif self.headers.get("Authorization") not in (None, f"Bearer {self.hub.token}"):
            self.answer(401, **{"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo not in self.hub.repos:
            self.answer(404, **{"X-Error-Code": "RepoNotFound"})
        else:
            return False
        return True

    def describe(self, repo: str, revision: str) -> None:
        if self.is_refused(repo):
            return
        commit = self.hub.commit_of(repo, revision)
        if commit is None:
            self.answer(404, **{"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [{"rfilename": name} for name in self.hub.commits[commit]]
        self.answer(200, json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode())

    def resolve(self, repo: str, revision: str, name: str) -> None:
        if self.is_refused(repo):
            return
        if repo in self.hub.gated:
            self.answer(403, **{"X-Error-Code": "GatedRepo"})
            return
        commit = self.hub.commit_of(repo, revision)
        if commit is None or name not in self.hub.commits[commit]:
            self.answer(404, **{"X-Error-Code": "EntryNotFound"})
            return
        content = self.hub.commits[commit][name]
        headers = {"X-Repo-Commit": commit}
        if len(content) < LARGE:
            blob = b"blob %d\0" % len(content) + content
            headers["ETag"] = f'"{hashlib.sha1(blob, usedforsecurity=False).hexdigest()}"'
            self.answer(200, content, **headers)
            return
        digest = hashlib.sha256(content).hexdigest()
        headers["X-Linked-Etag"], headers["X-Linked-Size"] = f'"{digest}"', str(self.hub.size_said or len(content))
        # Another origin, as the hub's own storage is.
        headers["Location"] = self.hub.url.replace("127.0.0.1", "localhost") + f"/blobs/{digest}"
        self.answer(302, **headers)

    def send_large(self, digest: str) -> None:
        hub = self.hub
        first = 0 if hub.ignores_ranges else self.first
        content = next(
            each
            for files in hub.commits.values()
            for each in files.values()
            if hashlib.sha256(each).hexdigest() == digest
        )
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        for start in range(first, len(content), CHUNK):
            if start >= hub.held_after:
                hub.may_send.wait(60)
            if hub.cut_after and hub.sent.get(digest, 0) >= hub.cut_after:
                hub.cut_after = 0
                self.close_connection = True
                return
            self.wfile.write(content[start : start + CHUNK])
            hub.sent[digest] = hub.sent.get(digest, 0) + len(content[start : start + CHUNK])

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that have disconnected: some tests end them in the middle."""


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    server = _Server(("127.0.0.1", 0), type("OfHub", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.may_send.set()
        hub.ended.set()
        server.shutdown()
        server.server_close()


def load(
    tmp_path: Path, reference: str = "org/name", allow_pickle: str = "", allow_hub: bool = True, **given: Any
) -> Path:
    made = spec(weights=f"hub://{reference}", allow_pickle=allow_pickle, runtime=Runtime(hf_fallback=allow_hub))
    return loadable(made, (), cache=tmp_path, **given)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
