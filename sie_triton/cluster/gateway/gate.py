"""Limits a gateway's requests in the queue, and lets tenants take turns before it.

The queue is served in its order, whoever sent the requests. Those beyond the limit wait here, each tenant's in a line
of its own.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import ceil
from time import monotonic

from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.policies.fair import Turns, expected_s
from sie_triton.errors import BusyError


class _Line:
    """Requests for one model."""

    def __init__(self, max_rated: int) -> None:
        self.num_sent = 0
        self.turns = Turns[asyncio.Future[None]]()
        self.ended: deque[float] = deque(maxlen=max_rated)


class Gate:
    """Gives turns. Belongs to one event loop. `window` returns how many requests for a model may be in the queue."""

    def __init__(self, window: Callable[[str, str], int], limits: GatewayLimits = GatewayLimits()) -> None:
        self._window, self._limits = window, limits
        self._lines: dict[tuple[str, str], _Line] = {}
        self._num_waiting = 0
        self._of_tenants: dict[str, int] = {}

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @asynccontextmanager
    async def turn(self, pool: str, model: str, tenant: str, left_s: float) -> AsyncIterator[None]:
        """Context manager for one request in the queue; it waits for a turn.

        Raise BusyError at once if too many wait, or if the turn would come after `left_s` seconds.
        """
        line = self._lines.setdefault((pool, model), _Line(self._limits.max_rated))
        if line.num_sent >= self._window(pool, model) or line.turns:
            await self._wait(pool, model, line, tenant, left_s)
        else:
            line.num_sent += 1
        try:
            yield
        except BaseException:
            line.ended.clear()  # not a matter of the rate
            raise
        else:
            # While nobody waits, the time between two answers is that between two requests.
            if line.turns:
                line.ended.append(monotonic())
            else:
                line.ended.clear()
        finally:
            line.num_sent -= 1
            self._let_in(pool, model, line)

    def waiting(self) -> dict[tuple[str, str], int]:
        """Return the number of requests that wait here, by pool and model."""
        return {key: len(line.turns) for key, line in self._lines.items() if line.turns}

    def look(self) -> None:
        """Let requests in whose turn has come because workers joined."""
        for (pool, model), line in [*self._lines.items()]:
            self._let_in(pool, model, line)

    async def _wait(self, pool: str, model: str, line: _Line, tenant: str, left_s: float) -> None:
        of_tenant, limits = self._of_tenants.get(tenant, 0), self._limits
        if self._num_waiting >= limits.max_waiting or of_tenant >= limits.max_waiting_of_tenant:
            raise BusyError(f"{self._num_waiting} requests wait, {of_tenant} of them yours; retry")
        if (wait_s := expected_s(line.ended, monotonic(), line.turns.ahead(tenant), limits.min_rated)) > left_s:
            raise BusyError(
                f"the request would wait for {wait_s:.3g} s, and has {left_s:.3g} s; retry, or allow more time",
                retry_after_s=ceil(wait_s - left_s),
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.turns.add(tenant, turn)
        self._num_waiting += 1
        self._of_tenants[tenant] = of_tenant + 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was this request's turn already
                line.num_sent -= 1
                self._let_in(pool, model, line)
            else:
                line.turns.remove(tenant, turn)
            raise
        finally:
            self._num_waiting -= 1
            self._of_tenants[tenant] -= 1
            if not self._of_tenants[tenant]:
                del self._of_tenants[tenant]

    def _let_in(self, pool: str, model: str, line: _Line) -> None:
        limit = self._window(pool, model) if line.turns else 0
        while line.turns and line.num_sent < limit:
            turn = line.turns.take()
            if not turn.done():
                line.num_sent += 1
                turn.set_result(None)
        if not line.turns and not line.num_sent:
            self._lines.pop((pool, model), None)
