"""The seam between a stage and Triton: a request as arrays, answered now or later."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from sie_triton.errors import SIEError
from sie_triton.pipeline.scheduling.job import NEVER
from sie_triton.system.telemetry.identity import Trace

Outputs = Mapping[str, npt.NDArray[Any]]


class Later(Enum):
    """Placeholder in the list that `execute` returns, for a request that is answered later by `reply`."""

    DEFERRED = "deferred"


DEFERRED = Later.DEFERRED

Answer = Outputs | SIEError | Later


class Origin(NamedTuple):
    """Facts about a request that a stage has without reading it: the client's id, and the token of the door's call.

    Both may be empty. Times are monotonic, in nanoseconds.
    """

    arrived_ns: int
    deadline_ns: int = NEVER
    id: str = ""
    trace: Trace = Trace()
    call: str = ""


class Request(Protocol):
    """A request as a stage sees it: parameters, tensors, and the right to answer once.

    Arrays have Triton's batch dimension (1) in front. The thread in `execute` reads parameters and tensors, or the
    background thread if the request has waited for a load; any thread may reply. `parameters` and `id` raise InputError
    if they are not UTF-8 text. `reply` raises Triton's exception if Triton rejects the response.
    """

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def id(self) -> str:
        """The client's id of the request; empty if there is none."""
        ...

    @property
    def arrived_ns(self) -> int:
        """Time at which the step received the request, in monotonic nanoseconds."""
        ...

    @property
    def timeout_us(self) -> int:
        """The client's `timeout` in microseconds; 0 if there is none."""
        ...

    def tensor(self, name: str) -> npt.NDArray[Any] | None:
        """Return the input with this name, or None. The array is valid only until `execute` returns."""
        ...

    def defer(self) -> None:
        """Defer the response: `reply` must be called once, after `execute` has returned."""
        ...

    def reply(self, answer: Outputs | SIEError) -> None: ...

    def is_cancelled(self) -> bool:
        """True if the client has cancelled the request. Takes a round trip to Triton.

        Triton only knows about requests to the step itself, not about those through an ensemble.
        """
        ...
