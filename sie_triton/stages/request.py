"""The seam between a stage and Triton: a request seen as arrays, answered now or later."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sie_triton.errors import InputError, SIEError

Outputs = Mapping[str, npt.NDArray[Any]]


class Later(Enum):
    """The answer of a request whose `reply` comes later: its place in the list that `execute` returns."""

    DEFERRED = "deferred"


DEFERRED = Later.DEFERRED

Answer = Outputs | SIEError | Later


class Request(Protocol):
    """One request as a stage sees it: parameters, tensors, and the right to answer once.

    Arrays have Triton's batch dimension (1) in front. The thread in `execute` reads parameters and tensors, or the
    background thread where the request waited for a load; any thread may reply. `parameters` raises InputError where
    they are no UTF-8 text, `reply` what Triton raises for an answer that it does not take.
    """

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def id(self) -> str:
        """The client's name of the request; empty: none given."""
        ...

    @property
    def trace(self) -> str:
        """W3C trace context of this step; empty where nobody traces."""
        ...

    @property
    def timeout_us(self) -> int:
        """The client's `timeout`, microseconds; 0: none given."""
        ...

    def tensor(self, name: str) -> npt.NDArray[Any] | None:
        """The input of that name, or None; only valid until `execute` returns."""
        ...

    @property
    def is_deferred(self) -> bool:
        """True once `defer` was called."""
        ...

    def defer(self) -> None:
        """Promise to call `reply` once, after `execute` has returned."""
        ...

    def reply(self, answer: Outputs | SIEError) -> None: ...

    def is_cancelled(self) -> bool:
        """True if nobody waits for the answer any more. A round trip to Triton, which sees it only
        for requests that came directly, not through an ensemble."""
        ...


def vector(request: Request, name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """A copy of input `name` without its batch dimension, [k]; InputError unless it is [1, k]."""
    array = request.tensor(name)
    if array is None:
        raise InputError(f"{name}: missing; it is a required input")
    if array.ndim != 2 or array.shape[0] != 1:
        raise InputError(f"{name}: has shape {list(array.shape)}; send [1, k], one request per batch row")
    copy: npt.NDArray[Any] = array[0].astype(dtype)
    return copy
