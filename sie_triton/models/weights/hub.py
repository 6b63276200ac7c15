"""Resolve org/name[@revision] to one commit of a repository in the local cache, in huggingface_hub's layout.

The revision is resolved once, and all files are of that commit. A commit that is complete on disk needs no question;
else the cluster cache is asked, then the hub. If neither can be reached, the local cache is used.
"""

import fcntl
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import inside
from sie_triton.errors import LoadError
from sie_triton.models.weights.cluster import COMMIT, Cluster
from sie_triton.models.weights.limits import LIMITS
from sie_triton.models.weights.local_cache import home_of, hub_cache, is_complete, keep_names, known_names, listing
from sie_triton.models.weights.object_store import StoreError
from sie_triton.system.host.files import write_atomically

log = logging.getLogger(__name__)

DEFAULT_REVISION = "main"

ANY_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.onnx")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Commit of a repository. Missing files come from the cache `cluster`, then from the hub if `allow_hub`."""

    repo: str
    commit: str
    home: Path  # the repository's directory in the cache
    files: tuple[str, ...] | None = None  # all that the commit has; None if only the local cache could be asked
    unknown: LoadError | None = None  # why, without `files`; None for a commit that is complete in the cache
    allow_hub: bool = True
    cluster: str = ""  # a URL; empty: none

    @property
    def directory(self) -> Path:
        return self.home / "snapshots" / self.commit

    @property
    def names(self) -> Sequence[str]:
        """Names of all files of the commit; only the cached ones if the hub could not be asked."""
        return listing(self.directory) if self.files is None else self.files

    def matching(self, patterns: Sequence[str]) -> list[str]:
        return [name for name in self.names if any(fnmatchcase(name, pattern) for pattern in patterns)]

    def missing(self, patterns: Sequence[str]) -> list[str]:
        """Return the matching files that are not in the cache."""
        return [name for name in self.matching(patterns) if not (self.directory / name).exists()]


def snapshot(reference: str, *, allow_hub: bool, cluster: str = "", pin: Path | None = None) -> Snapshot:
    """Resolve `reference` to a commit; with a file `pin`, to the commit that the first caller with that file got.

    LoadError gives the reason and the remedy.
    """
    repo, _, revision = reference.partition("@")
    if pin is None:
        return _look_up(repo, revision, allow_hub, cluster)
    with pin.open("a+") as file:
        # Other processes wait for the lookup of the first one.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = _read_pin(file.read(), reference)
        if known.get("files") is not None:
            files = tuple(known["files"])
            return Snapshot(repo, known["commit"], _home(repo), files, allow_hub=allow_hub, cluster=cluster)
        found = _look_up(repo, known.get("commit", revision), allow_hub, cluster)
        file.truncate(0)
        json.dump({"reference": reference, "commit": found.commit, "files": found.files}, file)
    return found


class Hub:
    """The hub, and the cache `cluster` before it, asked whether weights are there; for one thread.

    At most `max_hub_questions` repositories are asked about, and no further one once the hub is unreachable.
    """

    def __init__(self, *, allowed: bool, cluster: str = "") -> None:
        self._cluster = cluster
        self._allowed = allowed
        self._num_queried = 0
        self._unreachable: LoadError | None = None

    def check(self, reference: str, patterns: Sequence[str] = ANY_WEIGHTS) -> None:
        """Raise LoadError if no file of `org/name[@revision]` in `patterns` is cached, and the hub lacks it."""
        try:
            if snapshot(reference, allow_hub=False).matching(patterns):
                return
        except LoadError:
            if not self._allowed and not self._cluster:
                raise
        if self._unreachable:
            raise self._unreachable
        if self._num_queried < LIMITS.max_hub_questions:
            self._num_queried += 1
            self._ask(reference)

    def _ask(self, reference: str) -> None:
        try:
            failure = snapshot(reference, allow_hub=self._allowed, cluster=self._cluster).unknown
        except LoadError as exc:
            failure = exc
        if failure and failure.reason == "network":
            self._unreachable = failure
        if failure:
            raise failure


def _read_pin(text: str, reference: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        known = json.loads(text)
        if isinstance(known, dict) and known.get("reference") == reference and _is_pin(known):
            return known
    return {}


def _is_pin(known: Mapping[str, Any]) -> bool:
    files = known.get("files", 0)
    are_names = isinstance(files, list) and all(isinstance(name, str) for name in files)
    return isinstance(known.get("commit"), str) and (files is None or are_names)


def _look_up(repo: str, revision: str, allow_hub: bool, cluster: str) -> Snapshot:
    home = _home(repo)
    if found := _on_disk(repo, revision, home) or _in_cluster(repo, revision, home, cluster):
        return replace(found, allow_hub=allow_hub, cluster=cluster)
    where = f"neither in the local cache nor in {cluster}" if cluster else "not in the local cache"
    unknown = LoadError(f"weights: {repo} is {where}, and downloading is not allowed (SIE_HF_FALLBACK)", "not found")
    if allow_hub:
        try:
            return replace(_ask(repo, revision, home), cluster=cluster)
        except LoadError as exc:
            unknown = exc
    commit = _known_commit(home, revision or DEFAULT_REVISION)
    if not commit or not (home / "snapshots" / commit).is_dir():
        raise unknown
    if allow_hub:
        log.warning("%s; the local cache has commit %s", unknown, commit)
    return Snapshot(repo, commit, home, unknown=unknown, allow_hub=allow_hub, cluster=cluster)


def _on_disk(repo: str, revision: str, home: Path) -> Snapshot | None:
    """Return the snapshot of a commit whose files are known without a question; None for a branch."""
    if not COMMIT.fullmatch(revision):
        return None
    if names := known_names(home, revision):
        return Snapshot(repo, revision, home, names)
    return Snapshot(repo, revision, home) if is_complete(home / "snapshots" / revision) else None


def _in_cluster(repo: str, revision: str, home: Path, cluster: str) -> Snapshot | None:
    """Return the snapshot that the cluster cache has; None, with a warning, if it cannot be used."""
    if not cluster:
        return None
    try:
        found = Cluster(cluster).find(repo, revision or DEFAULT_REVISION)
    except StoreError as exc:
        log.warning("weights: %s: the cluster cache cannot be used: %s", repo, exc)
        return None
    if found is None:
        return None
    _keep_ref(home, revision, found.commit)
    return Snapshot(repo, found.commit, home, tuple(found.files))


def _ask(repo: str, revision: str, home: Path) -> Snapshot:
    from huggingface_hub import HfApi, constants

    from sie_triton.models.weights.hub_errors import HTTPError, explained

    try:
        found = HfApi().model_info(repo, revision=revision or None, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (HTTPError, OSError) as exc:
        raise explained(exc, repo, revision or DEFAULT_REVISION) from exc
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:  # the server is not a model hub
        raise LoadError(f"weights: {repo}: {constants.ENDPOINT} is not a model hub", "network") from exc
    if found.id and found.id != repo:
        log.warning("weights: %s has been renamed to %s", repo, found.id)
    commit, files = str(found.sha), tuple(each.rfilename for each in found.siblings or ())
    if not COMMIT.fullmatch(commit) or not all(isinstance(name, str) for name in files):
        raise LoadError(f"weights: {repo}: {constants.ENDPOINT} did not return a commit and its files", "network")
    for name in files:
        inside(home, name, f"weights: {repo}: a file of the repository")
    _keep_ref(home, revision, commit)
    with suppress(OSError):
        keep_names(home, commit, files)
    return Snapshot(repo, commit, home, files)


def _home(repo: str) -> Path:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as exc:
        raise LoadError(f"weights: {repo} is not a valid hub id (org/name)", "not found") from exc
    return home_of(hub_cache(), repo)


def _known_commit(home: Path, revision: str) -> str:
    """Return the commit that the cache records for the revision; empty if it records none."""
    if COMMIT.fullmatch(revision):
        return revision
    with suppress(OSError):
        commit = inside(home / "refs", revision, "hf_revision").read_text().strip()
        return commit if COMMIT.fullmatch(commit) else ""
    return ""


def _keep_ref(home: Path, revision: str, commit: str) -> None:
    """Record the commit that a branch leads to, if the cache is writable."""
    if COMMIT.fullmatch(revision):
        return
    path = inside(home / "refs", revision or DEFAULT_REVISION, "hf_revision")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, commit)
