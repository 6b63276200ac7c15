"""Resolve org/name[@revision] to one commit of a repository in the local cache, in huggingface_hub's layout.

The revision is resolved once, and all files are of that commit. If the hub cannot be reached, the local cache is used.
"""

import fcntl
import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import inside
from sie_triton.errors import LoadError
from sie_triton.weights.pickles import listing

log = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")

DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository; `home` is the repository's directory in the cache.

    `files` lists all files that the hub has. It is None if the hub could not be asked; `unknown` then says why.
    """

    repo: str
    commit: str
    home: Path
    files: tuple[str, ...] | None = None
    unknown: LoadError | None = None

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


def snapshot(reference: str, *, allow_hub: bool, pin: Path | None = None) -> Snapshot:
    """Resolve `reference` to a commit; with a file `pin`, to the commit that the first caller with that file got.

    LoadError says why that is impossible and what to do.
    """
    repo, _, revision = reference.partition("@")
    if pin is None:
        return _look_up(repo, revision, allow_hub)
    with pin.open("a+") as file:
        # Other processes wait for the lookup of the first one.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = _read_pin(file.read(), reference)
        if known.get("files") is not None:
            return Snapshot(repo, known["commit"], _home(repo), tuple(known["files"]))
        found = _look_up(repo, known.get("commit", revision), allow_hub)
        file.truncate(0)
        json.dump({"reference": reference, "commit": found.commit, "files": found.files}, file)
    return found


def _read_pin(text: str, reference: str) -> dict[str, Any]:
    with suppress(ValueError):
        known: dict[str, Any] = json.loads(text)
        if known["reference"] == reference:
            return known
    return {}


def _look_up(repo: str, revision: str, allow_hub: bool) -> Snapshot:
    home = _home(repo)
    unknown = LoadError(
        f"weights: {repo} is not in the local cache, and downloading is not allowed (SIE_HF_FALLBACK)", "not found"
    )
    if allow_hub:
        try:
            return _ask(repo, revision, home)
        except LoadError as exc:
            unknown = exc
    commit = _known_commit(home, revision or DEFAULT_REVISION)
    if not commit or not (home / "snapshots" / commit).is_dir():
        raise unknown
    if allow_hub:
        log.warning("%s; the local cache has commit %s", unknown, commit)
    return Snapshot(repo, commit, home, unknown=unknown)


def _ask(repo: str, revision: str, home: Path) -> Snapshot:
    from huggingface_hub import HfApi, constants

    from sie_triton.weights.hub_errors import HTTPError, explained

    try:
        found = HfApi().model_info(repo, revision=revision or None, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (HTTPError, OSError) as exc:
        raise explained(exc, repo, revision or DEFAULT_REVISION) from exc
    except (ValueError, TypeError, KeyError) as exc:  # the server is not a model hub
        raise LoadError(f"weights: {repo}: {constants.ENDPOINT} is not a model hub", "network") from exc
    if found.id and found.id != repo:
        log.warning("weights: %s has been renamed to %s", repo, found.id)
    commit, files = str(found.sha), tuple(each.rfilename for each in found.siblings or ())
    if not COMMIT.fullmatch(commit):
        raise LoadError(f"weights: {repo}: {constants.ENDPOINT} did not return a commit", "network")
    for name in files:
        inside(home, name, f"weights: {repo}: a file of the repository")
    if not COMMIT.fullmatch(revision):
        with suppress(OSError):  # the cache may be read-only
            _keep(inside(home / "refs", revision or DEFAULT_REVISION, "hf_revision"), commit)
    return Snapshot(repo, commit, home, files)


def _home(repo: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as exc:
        raise LoadError(f"weights: {repo} is not a valid hub id (org/name)", "not found") from exc
    return Path(constants.HF_HUB_CACHE).expanduser() / f"models--{repo.replace('/', '--')}"


def _known_commit(home: Path, revision: str) -> str:
    """Return the commit that the cache records for the revision; empty if it records none."""
    if COMMIT.fullmatch(revision):
        return revision
    with suppress(OSError):
        commit = inside(home / "refs", revision, "hf_revision").read_text().strip()
        return commit if COMMIT.fullmatch(commit) else ""
    return ""


def _keep(path: Path, commit: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.write_text(commit)
    fresh.replace(path)
