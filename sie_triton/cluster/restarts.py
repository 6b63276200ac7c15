"""Keep the endless parts of a gateway or sidecar running."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

log = logging.getLogger(__name__)

# Pause before a part that failed is started again, and interval between two log lines about it, in seconds.
AGAIN_S, QUIET_S = 1.0, 30.0


async def restarted_forever(work: Callable[[], Awaitable[None]]) -> None:
    """Await `work`, and again after each failure, until it returns: a full disk or a lack of file handles passes."""
    quiet_until = 0.0
    while True:
        try:
            return await work()
        except Exception as exc:
            if monotonic() >= quiet_until:
                quiet_until = monotonic() + QUIET_S
                log.error("%s failed, and is started again", getattr(work, "__qualname__", work), exc_info=exc)
        await asyncio.sleep(AGAIN_S)
