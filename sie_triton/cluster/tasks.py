"""Tasks of a gateway, sidecar or config service: they are kept, started again after failures, and logged."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, TypeVar

from nats.errors import Error as NatsError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """Tasks of one event loop, which would be collected as garbage if nobody kept them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine. Log its failure, unless the queue is away, which the connection logs."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, NatsError):
            log.error("a part of this process failed", exc_info=error)


async def restarted_forever(work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    """Await `work`, and again after each failure and a pause, until it returns: a full disk passes, for example."""
    quiet_until = 0.0
    while True:
        try:
            return await work()
        except Exception as exc:
            if monotonic() >= quiet_until:
                quiet_until = monotonic() + 30.0
                log.error("%s failed, and is started again", getattr(work, "__qualname__", work), exc_info=exc)
        await asyncio.sleep(pause_s)
