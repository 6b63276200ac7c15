"""The cluster cache: weights that many servers share, in an object store.

    models--org--name/refs/main               the commit, 40 hexadecimal digits
    models--org--name/manifests/COMMIT.json   names, sizes and SHA-256 hashes of the commit's files
    models--org--name/blobs/SHA256            their contents

A manifest is written after its blobs, and a ref after its manifest, so that half an upload is never used.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path

from sie_triton.checkpoints.files import inside
from sie_triton.errors import LoadError
from sie_triton.models.weights.limits import LIMITS, WeightLimits
from sie_triton.models.weights.object_store import ObjectStore, StoreError

VERSION = 1

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MODEL = re.compile(r"models--([\w.-]+)/manifests/([0-9a-f]{40})\.json", re.ASCII)
MODEL_BLOB = re.compile(r"models--([\w.-]+)/blobs/([0-9a-f]{64})", re.ASCII)


ReportBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A file of a manifest. `etag` is the name of its blob in a local cache, as the hub gives it."""

    name: str
    size: int
    sha256: str
    etag: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one commit by name."""

    repo: str
    commit: str
    files: Mapping[str, ClusterFile]

    @classmethod
    def read(cls, text: bytes, repo: str, commit: str, limits: WeightLimits = LIMITS) -> "Manifest":
        """Return the manifest; ValueError unless all is well-formed and within bounds."""
        try:
            raw = json.loads(text)
        except RecursionError as exc:
            raise ValueError("it is nested too deeply") from exc
        if not isinstance(raw, dict) or raw.get("version") != VERSION or raw.get("commit") != commit:
            raise ValueError(f"it is no manifest of version {VERSION} of commit {commit}")
        files = raw.get("files")
        if not isinstance(files, list) or not 0 < len(files) <= limits.max_manifest_files:
            raise ValueError(f"files must be a list of 1 to {limits.max_manifest_files} files")
        return cls(repo, commit, {file.name: file for file in map(_file, files)})

    def to_json(self) -> bytes:
        files = [asdict(self.files[name]) for name in sorted(self.files)]
        return json.dumps({"version": VERSION, "repo": self.repo, "commit": self.commit, "files": files}).encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit in the cluster cache; `size` counts each of its blobs once."""

    repo: str
    commit: str
    size: int
    refs: Sequence[str] = ()


class Cluster:
    """The cluster cache at `url`. Methods raise StoreError if the store cannot be used. Threads may share it."""

    def __init__(self, url: str, limits: WeightLimits = LIMITS) -> None:
        self.url, self._limits = url, limits

    @cached_property
    def _store(self) -> ObjectStore:
        return ObjectStore(self.url, limits=self._limits)

    def find(self, repo: str, revision: str) -> Manifest | None:
        """Return the manifest of a commit, or of the commit that a branch leads to; None if it is not there."""
        commit = revision if COMMIT.fullmatch(revision) else self._ref(repo, revision)
        text = self._store.read(_manifest_path(repo, commit), self._limits.max_manifest_bytes) if commit else None
        if text is None:
            return None
        try:
            return Manifest.read(text, repo, commit, self._limits)
        except (ValueError, LoadError) as exc:
            raise StoreError(f"{self.url}/{_manifest_path(repo, commit)}: {exc}; push the model again") from exc

    def pieces(self, repo: str, file: ClusterFile, start: int) -> Iterator[bytes]:
        """Yield the content of a file from byte `start`."""
        return self._store.pieces(_blob_path(repo, file.sha256), start, file.size)

    def push(self, repo: str, commit: str, directory: Path, refs: Sequence[str], report_bytes: ReportBytes) -> int:
        """Upload the files of `directory`, a snapshot in the local cache; return the bytes that the store lacked.

        The branches `refs` then lead to the commit. Files that an earlier upload of the commit had stay in the
        manifest. `report_bytes` gets the size of each part that is done.
        """
        before = self.find(repo, commit)
        files, sent = dict(before.files if before else {}), 0
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            file = _describe(path, directory)
            files[file.name] = file
            if self._store.size(_blob_path(repo, file.sha256)) == file.size:
                report_bytes(file.size)
            else:
                self._store.write(_blob_path(repo, file.sha256), _content(path, report_bytes))
                sent += file.size
        self._store.write(_manifest_path(repo, commit), Manifest(repo, commit, files).to_json())
        for ref in refs:
            self._store.write(_ref_path(repo, ref), commit.encode())
        return sent

    def entries(self) -> list[Entry]:
        """Return every commit that has a manifest, by name; at most `max_listed_models`."""
        found: list[Entry] = []
        for listed in self._store.list():
            if (matched := MODEL.fullmatch(listed.path)) and len(found) < self._limits.max_listed_models:
                repo, commit = matched[1].replace("--", "/"), matched[2]
                manifest = self.find(repo, commit)
                blobs = {file.sha256: file.size for file in manifest.files.values()} if manifest else {}
                found.append(Entry(repo, commit, sum(blobs.values())))
        return sorted(found, key=lambda entry: (entry.repo, entry.commit))

    def remove(self, repo: str) -> int:
        """Remove a model, its refs and manifests first; return the bytes that became free."""
        objects = sorted(self._store.list(_home(repo)), key=lambda each: MODEL_BLOB.fullmatch(each.path) is not None)
        for each in objects:
            self._store.remove(each.path)
        return sum(each.size for each in objects)

    def _ref(self, repo: str, revision: str) -> str:
        text = (
            (self._store.read(_ref_path(repo, revision), self._limits.max_ref_bytes) or b"")
            .decode(errors="replace")
            .strip()
        )
        return text if COMMIT.fullmatch(text) else ""


def _home(repo: str) -> str:
    return f"models--{repo.replace('/', '--')}"


def _ref_path(repo: str, revision: str) -> str:
    inside(Path("/refs"), revision, "hf_revision")
    return f"{_home(repo)}/refs/{revision}"


def _manifest_path(repo: str, commit: str) -> str:
    return f"{_home(repo)}/manifests/{commit}.json"


def _blob_path(repo: str, sha256: str) -> str:
    return f"{_home(repo)}/blobs/{sha256}"


def _file(raw: object) -> ClusterFile:
    """Return a file of a manifest, which is trusted no more than the store is."""
    if not isinstance(raw, dict):
        raise ValueError("each file must be an object")
    name, size, sha256, etag = (raw.get(key) for key in ("name", "size", "sha256", "etag"))
    if not isinstance(name, str) or not name:
        raise ValueError("name must be the path of a file")
    inside(Path("/snapshot"), name, "name")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= LIMITS.max_file_bytes:
        raise ValueError(f"{name}: size must be from 0 to {LIMITS.max_file_bytes} bytes")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise ValueError(f"{name}: sha256 must be 64 hexadecimal digits")
    if not isinstance(etag, str) or not (etag == sha256 or COMMIT.fullmatch(etag)):
        raise ValueError(f"{name}: etag must be sha256, or 40 hexadecimal digits")
    return ClusterFile(name, size, sha256, etag)


def _describe(path: Path, directory: Path) -> ClusterFile:
    with path.open("rb") as file:
        sha256 = file_digest(file, "sha256").hexdigest()
    blob = path.resolve().name
    if SHA256.fullmatch(blob) and blob != sha256:
        raise LoadError(f"{path} is damaged: its content does not match its hash; remove the model and fetch it again")
    etag = blob if COMMIT.fullmatch(blob) else sha256
    return ClusterFile(str(path.relative_to(directory)), path.stat().st_size, sha256, etag)


def _content(path: Path, report_bytes: ReportBytes) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(LIMITS.read_bytes):
            yield chunk
            report_bytes(len(chunk))
