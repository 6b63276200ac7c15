"""org/name[@revision] → one commit of a repository in the hub's local cache, as huggingface_hub lays that out.

The revision is looked up once, and every file is of the commit that it was then. Where the hub cannot be asked the
cache answers.
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

    `files`: all that the hub has of it, None where the hub could not be asked; `unknown` then says why.
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
        """Of its files, as far as they are known."""
        return listing(self.directory) if self.files is None else self.files

    def matching(self, patterns: Sequence[str]) -> list[str]:
        return [name for name in self.names if any(fnmatchcase(name, pattern) for pattern in patterns)]

    def missing(self, patterns: Sequence[str]) -> list[str]:
        """The files that match and are not in the cache."""
        return [name for name in self.matching(patterns) if not (self.directory / name).exists()]


def snapshot(reference: str, *, allow_hub: bool, pin: Path | None = None) -> Snapshot:
    """What `reference` is now; with a file `pin`, what it was when the first asked who named that file.

    LoadError says why it cannot be had, and what to do.
    """
    repo, _, revision = reference.partition("@")
    if pin is None:
        return _look_up(repo, revision, allow_hub)
    with pin.open("a+") as file:
        # Whoever comes second waits for what the first finds out.
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
    except (ValueError, TypeError, KeyError) as exc:  # the answer of something else
        raise LoadError(f"weights: {repo}: {constants.ENDPOINT} is no model hub", "network") from exc
    if found.id and found.id != repo:
        log.warning("weights: %s is called %s now", repo, found.id)
    commit, files = str(found.sha), tuple(each.rfilename for each in found.siblings or ())
    if not COMMIT.fullmatch(commit):
        raise LoadError(f"weights: {repo}: {constants.ENDPOINT} names no commit of it", "network")
    for name in files:
        inside(home, name, f"weights: {repo}: a file of it")
    if not COMMIT.fullmatch(revision):
        with suppress(OSError):  # a cache that can only be read
            _keep(inside(home / "refs", revision or DEFAULT_REVISION, "hf_revision"), commit)
    return Snapshot(repo, commit, home, files)


def _home(repo: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as exc:
        raise LoadError(f"weights: {repo} is no name of a model of the hub (org/name)", "not found") from exc
    return Path(constants.HF_HUB_CACHE).expanduser() / f"models--{repo.replace('/', '--')}"


def _known_commit(home: Path, revision: str) -> str:
    """By the cache; empty where it does not know."""
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
