"""Connection limit of a door, and the choice of the connection that is closed for a new one."""

import resource
from enum import IntEnum
from typing import Protocol

# Descriptors that a door needs besides those of its clients: files, Triton's channel, the event loop.
RESERVED_DESCRIPTORS = 256


def affordable(num_connections: int, num_shares: int = 1) -> int:
    """Return `num_connections`, or fewer if `num_shares` times as many exceed this process's descriptor limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return num_connections
    return max(1, min(num_connections, (most - RESERVED_DESCRIPTORS) // num_shares))


class Phase(IntEnum):
    """Progress of a connection. Connections in earlier phases are closed first."""

    NEW = 0  # headers of the first request are incomplete
    KEPT = 1  # idle between two requests
    READING = 2  # the body of a request is being received
    WORKING = 3  # a request is being processed


class Closable(Protocol):
    """Interface of a connection that `Connections` may close."""

    def give_way(self) -> None:
        """Close at once."""
        ...


class Connections:
    """Limit on open connections, so that the process never runs out of descriptors; used on one event loop.

    >>> class Socket:
    ...     def give_way(self): crowd.leave(self)
    >>> crowd, first, second, third = Connections(2), Socket(), Socket(), Socket()
    >>> crowd.enter(first), crowd.enter(second), crowd.move(first, Phase.WORKING), crowd.enter(third)
    (True, True, None, True)
    >>> [crowd.phase(each) for each in (first, second, third)]
    [<Phase.WORKING: 3>, None, <Phase.NEW: 0>]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._phases: dict[Closable, Phase] = {}
        self._by_phase: dict[Phase, dict[Closable, None]] = {phase: {} for phase in Phase}  # longest in its phase first

    def __len__(self) -> int:
        return len(self._phases)

    def phase(self, client: Closable) -> Phase | None:
        return self._phases.get(client)

    def enter(self, client: Closable) -> bool:
        """Admit `client` as NEW; at the limit, close another connection. Return False if all others are WORKING."""
        if len(self._phases) >= self._limit:
            waiting = (each for phase in Phase if phase is not Phase.WORKING for each in self._by_phase[phase])
            victim = next(waiting, None)
            if victim is None:
                return False
            self.leave(victim)
            victim.give_way()
        self._phases[client] = Phase.NEW
        self._by_phase[Phase.NEW][client] = None
        return True

    def move(self, client: Closable, phase: Phase) -> None:
        """Move `client` to `phase`; do nothing if it has left."""
        before = self._phases.get(client)
        if before is not None and before is not phase:
            del self._by_phase[before][client]
            self._phases[client] = phase
            self._by_phase[phase][client] = None

    def leave(self, client: Closable) -> None:
        """Remove `client`; do nothing if it has left already."""
        phase = self._phases.pop(client, None)
        if phase is not None:
            del self._by_phase[phase][client]
