"""Limits a gateway's requests in the queue, and lets tenants take turns before it.

The queue is served in its order, whoever sent the requests. Those beyond the limit wait here, each tenant's in a line
of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import ceil
from time import monotonic

from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.policies.fair import Durations, Turns
from sie_triton.errors import BusyError


class _Line:
    """Requests for one model."""

    def __init__(self, durations: Durations) -> None:
        self.num_sent = 0
        self.turns = Turns[asyncio.Future[None]]()
        self.durations = durations


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
    async def turn(self, pool: str, model: str, tenant: str, left_s: float, num_bytes: int = 0) -> AsyncIterator[None]:
        """Context manager for one request of `num_bytes` in the queue; it waits for a turn.

        Raise BusyError at once if too many wait, or if the answer would come after `left_s` seconds.
        """
        limits = self._limits
        line = self._lines.setdefault((pool, model), _Line(Durations(limits.max_rated, limits.min_rated)))
        num_ahead, began = line.num_sent + line.turns.ahead(tenant), monotonic()
        if (expected_s := line.durations.expected_s(num_ahead, num_bytes)) > left_s:
            raise BusyError(
                f"the request would take {expected_s:.3g} s, and has {left_s:.3g} s; retry, or allow more time",
                retry_after_s=ceil(expected_s - left_s),
            )
        is_answered = False
        try:
            async with self._place(pool, model, line, tenant):
                yield
            is_answered = True
        finally:
            took_s = monotonic() - began
            if is_answered or took_s >= left_s:  # else it was refused, or its client did not wait
                line.durations.add(num_ahead, num_bytes, took_s)

    @asynccontextmanager
    async def _place(self, pool: str, model: str, line: _Line, tenant: str) -> AsyncIterator[None]:
        """Context manager for a place in the queue, for which it waits."""
        if line.num_sent >= self._window(pool, model) or line.turns:
            await self._wait(pool, model, line, tenant)
        else:
            line.num_sent += 1
        try:
            yield
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

    async def _wait(self, pool: str, model: str, line: _Line, tenant: str) -> None:
        of_tenant, limits = self._of_tenants.get(tenant, 0), self._limits
        if self._num_waiting >= limits.max_waiting or of_tenant >= limits.max_waiting_of_tenant:
            raise BusyError(f"{self._num_waiting} requests wait, {of_tenant} of them yours; retry")
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
