"""Keeps what gateways tell: which of them are alive, what their clocks show, and whose clients have stopped waiting."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from typing import Any

from nats.aio.msg import Msg

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Work, clock_in


@dataclass(frozen=True, slots=True)
class _Heard:
    """The latest heartbeat of a gateway: when it came, by `monotonic`, and its clock."""

    at: float
    clock: float


class Gateways:
    """Belongs to one event loop."""

    def __init__(self, limits: SidecarLimits = SidecarLimits()) -> None:
        self._limits = limits
        self._withdrawn: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._gateways: OrderedDict[str, _Heard] = OrderedDict()
        self._listening_since = monotonic()

    async def hear_gateway(self, message: Msg) -> None:
        if (clock := clock_in(message.data)) is not None:
            name = message.subject.rpartition(".")[2]
            _remember(self._gateways, name, _Heard(monotonic(), clock), self._limits.max_gateways)

    def forget_silence(self) -> None:
        """Take no gateway for gone because this sidecar heard nothing itself."""
        self._listening_since = monotonic()

    def withdraw(self, key: tuple[str, int]) -> None:
        """Note that the client of a request no longer waits; the request itself may come later."""
        _remember(self._withdrawn, key, None, self._limits.max_withdrawn)

    def is_awaited(self, work: Work) -> bool:
        """Return False if a request was withdrawn, or its gateway is gone."""
        if work.key in self._withdrawn:
            return False
        heard = self._gateways.get(work.gateway)
        heard_at = max(heard.at if heard else 0.0, self._listening_since)
        return monotonic() - heard_at <= self._limits.gateway_gone_s

    def left_s(self, work: Work) -> float:
        """Return the time until the deadline by the clock of the gateway: this machine's may be wrong, or jump."""
        heard = self._gateways.get(work.gateway)
        if heard is None:
            return work.deadline - time.time()
        return work.deadline - heard.clock - (monotonic() - heard.at)


def _remember(table: "OrderedDict[Any, Any]", key: Any, value: Any, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > limit:
        table.popitem(last=False)
