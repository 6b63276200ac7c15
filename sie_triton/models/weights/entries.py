"""The commits in the local cache: their sizes, last uses, and removal."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sie_triton.models.weights.local_cache import OURS, home_of, repo_of
from sie_triton.models.weights.uses import if_unused, last_use

LOCK = "lock"

# Suffix of a blob that is not complete.
PARTIAL = ".sie-partial"


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit in the local cache."""

    home: Path  # directory of its repository
    commit: str
    size: int
    last_use: float | None  # in seconds since 1970; None if this package has neither fetched nor loaded the commit

    @property
    def repo(self) -> str:
        return repo_of(self.home)

    @property
    def name(self) -> str:
        return f"{self.repo}@{self.commit}"

    @property
    def directory(self) -> Path:
        return self.home / "snapshots" / self.commit

    @property
    def is_in_use(self) -> bool:
        with suppress(OSError), if_unused(record_of(self.home, self.commit)) as unused:
            return not unused
        return False

    @property
    def refs(self) -> list[str]:
        """Branches that lead to the commit."""
        return [name for name, commit in _refs(self.home) if commit == self.commit]

    def remove(self) -> bool:
        """Remove the commit, and the blobs that no other commit has; return False if a process uses it.

        OSError if the cache cannot be written.
        """
        with if_unused(self.home / OURS / LOCK) as no_download, if_unused(record_of(self.home, self.commit)) as unused:
            if not (no_download and unused):
                return False
            blobs = _blobs(self.directory)
            shutil.rmtree(self.directory, ignore_errors=True)
            for blob in blobs - {blob for other in _snapshots(self.home) for blob in _blobs(other)}:
                blob.unlink(missing_ok=True)
            for partial in (self.home / "blobs").glob(f"*{PARTIAL}"):  # no download is in progress
                partial.unlink(missing_ok=True)
            for name in self.refs:
                (self.home / "refs" / name).unlink(missing_ok=True)
            for suffix in (".files", ".used"):
                (self.home / OURS / f"{self.commit}{suffix}").unlink(missing_ok=True)
            if not _snapshots(self.home) and not list((self.home / OURS).glob("*.used")):
                shutil.rmtree(self.home, ignore_errors=True)
        return True


def record_of(home: Path, commit: str) -> Path:
    """Return the path of the commit's record of use; see uses.py."""
    return home / OURS / f"{commit}.used"


def entries(cache: Path, repo: str = "") -> list[Entry]:
    """Return the commits in the cache, of one repository or of all, by name and last use."""
    homes = [home_of(cache, repo)] if repo else sorted(cache.glob("models--*"))
    found = [_entry(home, commit) for home in homes for commit in _commits(home)]
    return sorted(found, key=lambda entry: (entry.repo, entry.last_use or 0))


def _commits(home: Path) -> set[str]:
    """Return the commits with a file, and those of which a download has begun."""
    return {path.name for path in _snapshots(home)} | {path.stem for path in (home / OURS).glob("*.used")}


def _entry(home: Path, commit: str) -> Entry:
    blobs = _blobs(home / "snapshots" / commit) or set((home / "blobs").glob(f"*{PARTIAL}"))
    return Entry(home, commit, sum(_sizes(blobs)), last_use(record_of(home, commit)))


def _snapshots(home: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in sorted((home / "snapshots").iterdir()) if path.is_dir()]
    return []


def _blobs(snapshot: Path) -> set[Path]:
    """Return the files that a snapshot consists of; copies, where links are not supported, are files of their own."""
    return {path.resolve() for path in snapshot.rglob("*") if path.is_file()}


def _sizes(paths: Sequence[Path] | set[Path]) -> Iterator[int]:
    for path in paths:
        with suppress(OSError):
            yield path.stat().st_size


def _refs(home: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((home / "refs").rglob("*")):
        with suppress(OSError, ValueError):
            if path.is_file():
                yield str(path.relative_to(home / "refs")), path.read_text().strip()
