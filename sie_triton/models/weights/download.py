"""Download the files of a commit that the local cache lacks, several at a time: from the cluster cache, else the hub.

An interrupted download is resumed, by this or another process; huggingface_hub would start the file again.
"""

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock
from typing import IO, TypeVar

from sie_triton.checkpoints.files import first_line
from sie_triton.errors import LoadError
from sie_triton.models.weights.cluster import Cluster
from sie_triton.models.weights.entries import LOCK, PARTIAL
from sie_triton.models.weights.hub import Snapshot
from sie_triton.models.weights.hub_errors import HTTPError, explained, is_passing
from sie_triton.models.weights.limits import LIMITS
from sie_triton.models.weights.local_cache import OURS
from sie_triton.models.weights.object_store import StoreError
from sie_triton.models.weights.origins import ClusterOrigin, HubOrigin, Remote
from sie_triton.models.weights.progress import ProgressLine, ReportProgress
from sie_triton.models.weights.trees import lock
from sie_triton.models.weights.uses import shared

log = logging.getLogger(__name__)


MakeRoom = Callable[[int], object]
Item = TypeVar("Item")
Result = TypeVar("Result")


class DownloadAbandoned(Exception):
    """The download was stopped because its caller has given up."""


def fetch(
    snapshot: Snapshot,
    patterns: Sequence[str],
    report_progress: ReportProgress,
    max_bytes: int | None,
    make_room: MakeRoom,
) -> None:
    """Download the missing files that match. `report_progress` gets a line twice a second; it may raise to stop.

    Raise LoadError for a fault of the hub, the cluster cache, the network or the disk, or if the missing files exceed
    `max_bytes` in all. Partial downloads stay for the next attempt. `make_room` is called with the bytes to come, and
    with 0 at the end.
    """
    names = snapshot.missing(patterns)
    if not names:
        return
    transfer = Transfer(snapshot, _cluster_origin(snapshot))
    pool = ThreadPoolExecutor(4, "fetch")
    try:
        files = _all(pool, transfer.look_up, names, lambda: report_progress(transfer.progress))
        transfer.prepare(files, max_bytes, make_room)
        with shared(snapshot.home / OURS / LOCK):
            _all(pool, transfer.get, files, lambda: report_progress(transfer.progress))
        make_room(0)
    except HTTPError as exc:
        raise explained(exc, snapshot.repo, snapshot.commit) from exc
    except OSError as exc:
        raise _of_disk(exc, snapshot) from exc
    finally:
        transfer.stop.set()
        # A thread that waits for a stalled hub is left behind.
        pool.shutdown(wait=False, cancel_futures=True)


def _cluster_origin(snapshot: Snapshot) -> ClusterOrigin | None:
    """Return the cluster cache's files of the commit; None if it has none or, with a warning, cannot be used."""
    if not snapshot.cluster:
        return None
    cluster = Cluster(snapshot.cluster)
    try:
        found = cluster.find(snapshot.repo, snapshot.commit)
    except StoreError as exc:
        log.warning("weights: %s: the cluster cache cannot be used: %s", snapshot.repo, exc)
        return None
    return ClusterOrigin(cluster, snapshot.repo, found.files) if found else None


def _all(
    pool: ThreadPoolExecutor, do: Callable[[Item], Result], items: Sequence[Item], tick: Callable[[], None]
) -> list[Result]:
    """Return `do` of each item, in order; raise the first error."""
    futures = [pool.submit(do, item) for item in items]
    left = set(futures)
    while left:
        done, left = wait(left, LIMITS.progress_s, FIRST_COMPLETED)
        for each in done:
            each.result()
        tick()
    return [each.result() for each in futures]


def _of_disk(error: OSError, snapshot: Snapshot) -> LoadError:
    if error.errno == errno.ENOSPC:
        return LoadError(f"weights: {snapshot.repo}: {snapshot.home.parent} is full; free up space there", "disk full")
    return LoadError(f"weights: {snapshot.repo} cannot be stored in {snapshot.home.parent}: {first_line(error)}")


class Transfer:
    """Download of several files; threads of a pool call `look_up` and `get` until `stop` is set."""

    def __init__(self, snapshot: Snapshot, cluster: ClusterOrigin | None = None) -> None:
        self._snapshot = snapshot
        self._blobs = snapshot.home / "blobs"
        self._cluster = cluster
        self._hub = HubOrigin(snapshot.repo, snapshot.commit)
        self._lock = Lock()
        self._got = self._total = 0
        self.stop = Event()

    @property
    def progress(self) -> ProgressLine:
        megabytes = f": {self._got / 1e6:.0f} of {self._total / 1e6:.0f} MB" if self._total else ""
        origin = self._cluster or self._hub
        return ProgressLine(f"fetching {self._snapshot.repo} from {origin.name}{megabytes}", self._got, self._total)

    def look_up(self, name: str) -> Remote:
        return (self._cluster and self._cluster.look_up(name)) or self._look_up_on_hub(name)

    def _look_up_on_hub(self, name: str) -> Remote:
        if not self._snapshot.allow_hub:
            raise LoadError(
                f"weights: {self._snapshot.repo}: {name} is not in the local cache"
                f"{' or the cluster cache' if self._snapshot.cluster else ''}, and downloading is not allowed "
                "(SIE_HF_FALLBACK)",
                "not found",
            )
        return self._hub.look_up(name)

    def prepare(self, files: Sequence[Remote], max_bytes: int | None, make_room: MakeRoom) -> None:
        """Raise LoadError if the missing files exceed `max_bytes`, or if what is left exceeds the free disk space."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        left = [file for file in files if not (self._blobs / file.etag).exists()]
        self._total = sum(file.size or 0 for file in left)
        if max_bytes is not None and self._total > max_bytes:
            raise LoadError(
                f"weights: {self._snapshot.repo} has {self._total / 1e6:.0f} MB to fetch, and {max_bytes / 1e6:.0f} MB "
                "are allowed; download it yourself, and give its directory instead",
                "unsupported",
            )
        here = [path.stat().st_size for file in left if (path := self._partial(file)).exists()]
        make_room(self._total - sum(here))
        free = max(0, shutil.disk_usage(self._blobs).free - LIMITS.spare_disk_bytes)
        if self._total - sum(here) > free:
            raise LoadError(
                f"weights: {self._snapshot.repo} needs {(self._total - sum(here)) / 1e6:.0f} MB more in "
                f"{self._snapshot.home.parent}, where {free / 1e6:.0f} MB are free; free up space there",
                "disk full",
            )

    def get(self, remote: Remote) -> None:
        """Download the file into the cache and link it in the snapshot; from the hub if the cluster cache fails."""
        try:
            self._get(remote)
        except StoreError as exc:
            if not self._snapshot.allow_hub:
                raise LoadError(f"weights: {self._snapshot.repo}: the cluster cache fails: {exc}", "network") from exc
            log.warning("weights: %s: fetching %s from the hub: %s", self._snapshot.repo, remote.name, exc)
            self._get(self._hub.look_up(remote.name))

    def _get(self, remote: Remote) -> None:
        blob = self._blobs / remote.etag
        if not blob.exists():
            with self._partial(remote).open("ab") as file:
                lock(file, self._check_stop)
                file.seek(0, os.SEEK_END)  # the lock's previous owner may have extended it
                # The process that held the lock may have completed the file.
                if not blob.exists():
                    self._receive(remote, file)
                    self._check(remote, file)
                    os.replace(file.name, blob)
        self._link(blob, self._snapshot.directory / remote.name)

    def _partial(self, remote: Remote) -> Path:
        return self._blobs / f"{remote.etag}{PARTIAL}"

    def _receive(self, remote: Remote, file: IO[bytes]) -> None:
        if remote.size is not None and file.tell() > remote.size:
            _empty(file)
        self._add(file.tell())
        failures = 0
        while file.tell() != remote.size:
            self._check_stop()
            before = file.tell()
            try:
                self._stream(remote, file)
                if remote.size is None:
                    break
                error: Exception | None = None
            except (HTTPError, StoreError) as exc:
                error = exc
            failures = 0 if file.tell() > before else failures + 1
            if error and (failures > LIMITS.max_retries or not is_passing(error)):
                raise error
            if failures > LIMITS.max_retries:
                raise self._damaged(remote)
            self.stop.wait(LIMITS.retry_pause_s if error else 0)
        file.flush()

    def _stream(self, remote: Remote, file: IO[bytes]) -> None:
        """Append the rest of the file, or the whole file if the origin cannot resume."""
        start = file.tell()
        with remote.origin.open(remote.name, start) as (first, chunks):
            if first != start:
                _empty(file)
                self._add(-start)
            for chunk in chunks:
                self._check_stop()
                if file.tell() + len(chunk) > (LIMITS.max_unsized_bytes if remote.size is None else remote.size):
                    _empty(file)
                    raise self._damaged(remote)
                file.write(chunk)
                self._add(len(chunk))

    def _check(self, remote: Remote, file: IO[bytes]) -> None:
        """Raise LoadError or StoreError if the content does not match its SHA-256 hash, where the origin gives one."""
        os.fsync(file.fileno())
        if remote.sha256 is None:
            return
        with open(file.name, "rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() == remote.sha256:
                return
        _empty(file)
        raise self._damaged(remote)

    def _damaged(self, remote: Remote) -> LoadError | StoreError:
        if isinstance(remote.origin, ClusterOrigin):
            return StoreError(f"{remote.name} is damaged in the cluster cache; push the model again")
        message = f"weights: {self._snapshot.repo}: {remote.name} arrived damaged; the next load fetches it again"
        return LoadError(message, "network")

    def _link(self, blob: Path, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.symlink_to(os.path.relpath(blob, path.parent))

    def _add(self, num_bytes: int) -> None:
        with self._lock:
            self._got += num_bytes

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise DownloadAbandoned


def _empty(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()
