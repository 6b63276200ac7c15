"""A bucket of NATS, as this process sees it: kept up to date for ever, also if the bucket is lost and made anew."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoStreamResponseError, NotFoundError
from nats.js.kv import KeyValue

from sie_triton.cluster.connection import told
from sie_triton.cluster.limits import ClusterLimits

log = logging.getLogger(__name__)

T = TypeVar("T")


class Conflict(Exception):
    """An entry has been changed by somebody else since this process saw it; by now its present state is known."""


class Bucket(Generic[T]):
    """View of a bucket. Belongs to one event loop.

    `opened` makes or opens the bucket. `read` turns the bytes of an entry into a value; entries for which it returns
    None count as absent. `when_changed` is called with each key and value, None for an absent one.
    `poll_s`: interval in seconds at which a silent bucket is asked whether it has changed, as its news may have been
    lost. `with_history`: call `when_changed` for the former values of an entry, too.
    """

    def __init__(
        self,
        opened: Callable[[], Awaitable[KeyValue]],
        read: Callable[[bytes], T | None],
        *,
        when_changed: Callable[[str, T | None, int], None] | None = None,
        poll_s: float = 30.0,
        with_history: bool = False,
        limits: ClusterLimits = ClusterLimits(),
    ) -> None:
        self._opened, self._read, self.when_changed = opened, read, when_changed
        self._poll_s, self._with_history, self._limits = poll_s, with_history, limits
        self._bucket: KeyValue | None = None
        self._made_at: Any = None
        self._revisions: dict[str, int] = {}
        self._values: dict[str, T] = {}
        self._watched = 0
        self._is_doubtful = False
        self.epoch = 0  # revision of the latest change that is known
        self.are_known = asyncio.Event()

    @property
    def values(self) -> Mapping[str, T]:
        """Return a view of the present values, by key."""
        return MappingProxyType(self._values)

    def revision(self, key: str) -> int:
        """Return the revision of an entry; 0 if it has never been written."""
        return self._revisions.get(key, 0)

    async def open(self) -> None:
        """Open the bucket; NatsError or TimeoutError if that is not possible now.

        If it is another one than before, or an older state of it, what was in that one is forgotten.
        """
        self._bucket = await self._opened()
        found = (await self._bucket.status()).stream_info
        if self._made_at not in (None, found.created) or found.state.last_seq < self.epoch:
            self._forget()
            self.doubt()
        self._made_at = found.created

    async def watch(self) -> None:
        """Follow the changes, until the connection is closed."""
        while True:
            pause_s = self._limits.bucket_retry_s
            try:
                await self.open()
                await self._follow()
            except NotFoundError:  # nobody has made it yet
                self._forget()
                self.are_known.set()
                pause_s = self._limits.bucket_absent_s
            except ConnectionClosedError:
                return
            except (NatsError, TimeoutError) as exc:
                log.warning("queue: bucket: %s", told(exc))
            await asyncio.sleep(pause_s)

    async def _follow(self) -> None:
        """Take changes until some have been lost, or may be from now on."""
        assert self._bucket is not None
        self._is_doubtful, asked_at = False, monotonic()
        watcher = await self._bucket.watchall(include_history=self._with_history)
        try:
            while True:
                try:
                    entry = await watcher.updates(self._limits.bucket_listen_s)  # type: ignore[no-untyped-call]
                except TimeoutError:
                    if self._is_doubtful:
                        return
                    if monotonic() - asked_at >= self._poll_s:
                        asked_at = monotonic()
                        if not await self._is_current():
                            return
                    continue
                if entry is None:  # all present keys have come
                    self.are_known.set()
                elif entry.revision is not None:
                    self._watched = entry.revision
                    self._take(entry.key, entry.value if entry.operation is None else b"", entry.revision)
        finally:
            with suppress(NatsError, TimeoutError):
                await watcher.stop()  # type: ignore[no-untyped-call]

    def doubt(self) -> None:
        """Watch anew soon: the connection was down, and a watch does not outlive its nats-server."""
        self._is_doubtful = True

    async def _is_current(self) -> bool:
        """Return True if the watcher has seen all changes of the bucket."""
        assert self._bucket is not None
        status = await self._bucket.status()
        return bool(status.stream_info.state.last_seq == self._watched)

    def forget(self, key: str) -> None:
        """Forget a value that the bucket has dropped by its age; a later change brings the key back."""
        self._values.pop(key, None)

    def _forget(self) -> None:
        keys = [*self._values]
        self._values.clear()
        self._revisions.clear()
        self.epoch = self._watched = 0
        for key in keys:
            self._tell(key, None, 0)

    async def write(self, key: str, value: bytes) -> int:
        """Replace an entry, and return the new revision.

        Raise Conflict if this process did not know the latest one, and NatsError or TimeoutError if the bucket is away.
        """
        if self._bucket is None:
            await self.open()
        assert self._bucket is not None
        try:
            revision: int = await self._bucket.update(key, value, last=self.revision(key))
        except KeyWrongLastSequenceError as exc:
            await self._refresh(key)
            raise Conflict from exc
        except NoStreamResponseError as exc:
            await self.open()
            raise Conflict from exc
        self._take(key, value, revision)
        return revision

    async def _refresh(self, key: str) -> None:
        assert self._bucket is not None
        try:
            entry = await self._bucket.get(key)
        except KeyNotFoundError:  # a bucket that was made anew
            self._revisions.pop(key, None)
            self._values.pop(key, None)
            self._tell(key, None, 0)
        except (NatsError, TimeoutError):
            return
        else:
            self._revisions[key] = 0
            self._take(key, entry.value or b"", entry.revision or 0)

    def _take(self, key: str, value: bytes | None, revision: int) -> None:
        self.epoch = max(self.epoch, revision)
        if revision <= self._revisions.get(key, 0):
            return
        self._revisions[key] = revision
        found = self._read(value) if value else None
        if found is None:
            self._values.pop(key, None)
        else:
            self._values[key] = found
        self._tell(key, found, revision)

    def _tell(self, key: str, value: T | None, revision: int) -> None:
        if self.when_changed is not None:
            self.when_changed(key, value, revision)
