"""The model files of a cluster, as the config service changes them."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from nats.js.kv import KeyValue

from sie_triton.cluster.bucket import Bucket, Conflict
from sie_triton.cluster.limits import ConfigLimits
from sie_triton.cluster.model_files import ModelFile, Version, key, reader
from sie_triton.errors import SIEError


class Refused(SIEError):
    """A change cannot be made; `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Outcome(NamedTuple):
    """Result of a change: its epoch, and whether it made a new version. If not, an earlier change had made it."""

    epoch: int
    is_new: bool


class ModelFileStore:
    """Belongs to one event loop. Several config services, `producer` and `others`, may change the same bucket.

    A change is one write, which names the revision it replaces: whoever is killed leaves nothing half done.
    """

    def __init__(
        self,
        opened: Callable[[], Awaitable[KeyValue]],
        producer: str,
        others: Collection[str] = (),
        limits: ConfigLimits = ConfigLimits(),
    ) -> None:
        self._producer, self._limits = producer, limits
        read = reader({producer, *others})
        self.bucket = Bucket(opened, read, when_changed=self._learn, with_history=True, limits=limits)
        # Changes by their Idempotency-Key: model, pool, digest and epoch.
        self._requests: OrderedDict[str, tuple[str, str, str, int]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def change(
        self, model: str, pool: str, text: bytes, *, request: str = "", replaces: int | None = None
    ) -> Outcome:
        """Write a version of a model's file; an empty `text` removes the model.

        `request` is the client's Idempotency-Key, `replaces` the epoch of the version that it wants to replace. Raise
        Refused if the change cannot be made, and NatsError or TimeoutError if the bucket is away.
        """
        file = ModelFile(Version(model, pool, self._producer, time.time(), request), text)
        async with self._turn:
            await self.bucket.open()  # what is known may be that of a bucket that the queue has lost since
            for _ in range(10):
                if (done := self._done(file, replaces)) is not None:
                    return done
                try:
                    return Outcome(await self.bucket.write(key(pool, model), file.packed()), is_new=True)
                except Conflict:
                    continue
        raise Refused(503, "other config services change the same file; retry")

    def _done(self, file: ModelFile, replaces: int | None) -> Outcome | None:
        """Return the outcome of a change that needs no write, and None if it needs one; Refused if it may not be."""
        version = file.version
        known = self._requests.get(version.request) if version.request else None
        if known is not None:
            *change, epoch = known
            if change != [version.model, version.pool, file.digest]:
                raise Refused(422, "Idempotency-Key: it was used for another change; choose a new one")
            return Outcome(epoch, is_new=False)
        name = key(version.pool, version.model)
        present, revision = self.bucket.values.get(name), self.bucket.revision(name)
        if replaces is not None and replaces != revision:
            raise Refused(409, f"If-Match: the latest version of {version.model} is that of epoch {revision}")
        if present is not None and not present.is_removed and present.version.model != version.model:
            raise Refused(409, f"sie_id: {version.model} has the same name in Triton as {present.version.model}")
        if file.is_removed and (present is None or present.is_removed):
            raise Refused(404, f"{version.model} has no model file {_where(version.pool)}")
        if present is not None and present.text == file.text:
            return Outcome(revision, is_new=False)
        if present is None and len(self.bucket.values) >= self._limits.max_files:
            raise Refused(409, f"a cluster has {self._limits.max_files} model files at most")
        return None

    def _learn(self, name: str, file: ModelFile | None, epoch: int) -> None:
        if not epoch:  # of another bucket
            self._requests.clear()
        if file is not None and (request := file.version.request):
            self._requests.setdefault(request, (file.version.model, file.version.pool, file.digest, epoch))
            if len(self._requests) > self._limits.max_idempotency_keys:
                self._requests.popitem(last=False)


def _where(pool: str) -> str:
    return f"for pool {pool}" if pool else "for all pools"
