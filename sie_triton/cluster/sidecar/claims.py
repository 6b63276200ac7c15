"""Claims of workers to models, in a bucket of NATS that all sidecars of a pool read and write.

    token of the model → names of its workers, in JSON

A claim is a preference, not a lock: two workers that both fetch the work of a model do different parts of it.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from nats.errors import Error as NatsError
from nats.js.kv import KeyValue

from sie_triton.cluster.bucket import Bucket, Conflict
from sie_triton.cluster.connection import told
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.subjects import model_of, token

log = logging.getLogger(__name__)


class Claims:
    """This sidecar's view of the claims of its pool. Belongs to one event loop."""

    def __init__(
        self, opened: Callable[[], Awaitable[KeyValue]], worker: str, limits: SidecarLimits = SidecarLimits()
    ) -> None:
        self._worker = worker
        self._bucket = Bucket(opened, _holders, when_changed=self._changed, limits=limits)
        self._of_models: dict[str, Sequence[str]] = {}
        self.open, self.watch, self.doubt = self._bucket.open, self._bucket.watch, self._bucket.doubt

    @property
    def are_known(self) -> asyncio.Event:
        return self._bucket.are_known

    @property
    def all(self) -> Mapping[str, Sequence[str]]:
        """Workers by model."""
        return self._of_models

    def mine(self) -> list[str]:
        return sorted(model for model, holders in self._of_models.items() if self._worker in holders)

    async def claim(self, model: str, others: Collection[str]) -> bool:
        """Add this worker to `others`, the present workers of a model; False if another sidecar was faster."""
        return await self._write(model, sorted({*others, self._worker}))

    async def release(self, model: str) -> bool:
        return await self._write(model, [name for name in self._of_models.get(model, ()) if name != self._worker])

    async def _write(self, model: str, holders: Sequence[str]) -> bool:
        try:
            await self._bucket.write(token(model), json.dumps(holders).encode())
        except Conflict:
            return False
        except (NatsError, TimeoutError) as exc:
            log.warning("queue: claim of %s: %s", model, told(exc))
            return False
        return True

    def _changed(self, key: str, holders: Sequence[str] | None, revision: int) -> None:
        if holders is None:
            self._of_models.pop(model_of(key), None)
        else:
            self._of_models[model_of(key)] = holders


def _holders(value: bytes) -> Sequence[str] | None:
    try:
        holders = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return [name for name in holders[:1000] if isinstance(name, str)] if isinstance(holders, list) else None
