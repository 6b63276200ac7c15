"""How many connections a door has, and which one gives way when one more than that comes."""

import resource
from enum import IntEnum
from typing import Protocol

# Descriptors that a door needs beside its clients': files, Triton's channel, the event loop.
RESERVED_DESCRIPTORS = 256


def affordable(num_connections: int) -> int:
    """Return `num_connections`, or as many as this process may have descriptors for."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        num_connections if most == resource.RLIM_INFINITY else max(1, min(num_connections, most - RESERVED_DESCRIPTORS))
    )


class Phase(IntEnum):
    """How far a connection is. Those of the first phases give way first."""

    NEW = 0  # no complete head of a request so far
    KEPT = 1  # between two requests
    READING = 2  # the body of a request arrives
    WORKING = 3  # a request is answered


class Client(Protocol):
    """A connection, as `Connections` knows it."""

    def give_way(self) -> None:
        """End at once."""
        ...


class Connections:
    """At most `limit` connections, so that the process never runs out of descriptors. Belongs to one event loop.

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
        self._phases: dict[Client, Phase] = {}
        self._by_phase: dict[Phase, dict[Client, None]] = {phase: {} for phase in Phase}  # the longest in it first

    def __len__(self) -> int:
        return len(self._phases)

    def phase(self, client: Client) -> Phase | None:
        return self._phases.get(client)

    def enter(self, client: Client) -> bool:
        """Admit `client` as NEW, in place of one that has less to lose; False where all others are being answered."""
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

    def move(self, client: Client, phase: Phase) -> None:
        """`client` is in `phase` from now on; nothing where it has left."""
        before = self._phases.get(client)
        if before is not None and before is not phase:
            del self._by_phase[before][client]
            self._phases[client] = phase
            self._by_phase[phase][client] = None

    def leave(self, client: Client) -> None:
        """Forget `client`, which may have left before."""
        phase = self._phases.pop(client, None)
        if phase is not None:
            del self._by_phase[phase][client]
