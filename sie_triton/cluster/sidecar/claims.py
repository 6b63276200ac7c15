"""Claims of workers to models, in a bucket of NATS that all sidecars of a pool read and write.

    token of the model → names of its workers, in JSON

A claim is a preference, not a lock: two workers that both fetch the work of a model do different parts of it.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress

from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoStreamResponseError
from nats.js.kv import KeyValue

from sie_triton.cluster.connection import told
from sie_triton.cluster.subjects import model_of, token

log = logging.getLogger(__name__)

# Pause before the bucket is watched again after an error, in seconds.
AGAIN_S = 1.0

# Workers of one model.
MAX_HOLDERS = 1000


class Claims:
    """This sidecar's view of the claims of its pool. Belongs to one event loop."""

    def __init__(self, bucket: KeyValue, reopen: Callable[[], Awaitable[KeyValue]], worker: str) -> None:
        self._bucket, self._reopen = bucket, reopen
        self._worker = worker
        self._holders: dict[str, Sequence[str]] = {}
        self._revisions: dict[str, int] = {}
        self.are_known = asyncio.Event()

    @property
    def all(self) -> Mapping[str, Sequence[str]]:
        return self._holders

    def mine(self) -> list[str]:
        return sorted(model for model, holders in self._holders.items() if self._worker in holders)

    async def watch(self) -> None:
        """Follow the changes, for ever."""
        while True:
            try:
                watcher = await self._bucket.watchall()
                async for entry in watcher:
                    if entry is None:  # all present keys have come
                        self.are_known.set()
                    elif entry.revision is not None:
                        self._take(model_of(entry.key), entry.value if entry.operation is None else b"", entry.revision)
            except (NatsError, TimeoutError) as exc:
                log.warning("queue: claims: %s", told(exc))
            await asyncio.sleep(AGAIN_S)
            await self._begin_anew()

    async def _begin_anew(self) -> None:
        """Open the bucket again, which may have been lost, and forget what was in it."""
        with suppress(NatsError, TimeoutError):
            self._bucket = await self._reopen()
            self._holders.clear()
            self._revisions.clear()

    async def claim(self, model: str, others: Collection[str]) -> bool:
        """Add this worker to `others`, the present workers of a model; False if another sidecar was faster."""
        return await self._write(model, sorted({*others, self._worker}))

    async def release(self, model: str) -> bool:
        return await self._write(model, [name for name in self._holders.get(model, ()) if name != self._worker])

    async def _write(self, model: str, holders: Sequence[str]) -> bool:
        value = json.dumps(holders).encode()
        try:
            revision = await self._bucket.update(token(model), value, last=self._revisions.get(model, 0))
        except KeyWrongLastSequenceError:
            await self._refresh(model)
            return False
        except NoStreamResponseError:
            await self._begin_anew()
            return False
        except (NatsError, TimeoutError) as exc:
            log.warning("queue: claim of %s: %s", model, told(exc))
            return False
        self._take(model, value, revision)
        return True

    async def _refresh(self, model: str) -> None:
        try:
            entry = await self._bucket.get(token(model))
        except KeyNotFoundError:  # a bucket that was made anew
            self._holders.pop(model, None)
            self._revisions.pop(model, None)
        except (NatsError, TimeoutError):
            return
        else:
            self._revisions[model] = 0
            self._take(model, entry.value or b"", entry.revision or 0)

    def _take(self, model: str, value: bytes | None, revision: int) -> None:
        if revision < self._revisions.get(model, 0):
            return
        self._revisions[model] = revision
        try:
            holders = json.loads(value or b"[]")
        except ValueError:
            holders = []
        if isinstance(holders, list):
            self._holders[model] = [name for name in holders[:MAX_HOLDERS] if isinstance(name, str)]
