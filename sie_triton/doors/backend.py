"""The seam between the routes and the backend that answers requests: one Triton, or a queue in front of many."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self, TypeVar
from urllib.request import Request

from sie_triton.client.aio import AsyncSIEClient, together
from sie_triton.client.calls import STEP_SUFFIXES
from sie_triton.client.connections import AsyncConnection
from sie_triton.client.failures import NotServed
from sie_triton.client.retry import Deadline
from sie_triton.client.types import EncodeResult, ExtractResult, ScoreResult
from sie_triton.contract.names import split_profile
from sie_triton.errors import SIEError
from sie_triton.records.calls import BULK

# Maximum number of concurrent requests to Triton that one large request is split into.
MAX_CONCURRENCY = 16

# Timeout of calls other than inference, in seconds.
QUESTION_S = 5.0

Items = Sequence[Mapping[str, Any]]

Result = TypeVar("Result")

# The identity of the request that this task handles, as request parameters: see system/telemetry/identity.py.
forwarded: ContextVar[Mapping[str, str]] = ContextVar("forwarded", default=MappingProxyType({}))

# The tenant of that request, by its token; empty without tokens.
tenant: ContextVar[str] = ContextVar("tenant", default="")

# Whether that request gives way to all others, as those of a batch do.
bulk: ContextVar[bool] = ContextVar("bulk", default=False)

# What the client of that request wishes of a cluster, by its headers.
wishes: ContextVar[Mapping[str, str]] = ContextVar("wishes", default=MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class States:
    """Model states by name; empty if they are unknown."""

    unserved: Mapping[str, str]  # models that are not served because their file is invalid → the reason
    models: Mapping[str, Mapping[str, Any]]
    memory: Mapping[str, Any]
    at: float  # in seconds of the monotonic clock

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """Memory of each GPU; empty on a CPU, and if it is unknown."""
        return [each for each in self.memory.get("devices", []) if each["device"] != "cpu"]


class Backend(ABC):
    """Answers requests for the routes. Belongs to one event loop. It never retries: errors tell the client when to.

    The calls are those of AsyncSIEClient with lists of items, and raise the same errors; `seconds` is the timeout of a
    call. `parameters` are request parameters; those that are None were not given.
    """

    # Problem that is reported while it is not live.
    away = "Triton does not answer"

    # Whether the door runs on the server's machine, and reads the server's files.
    is_beside_server = True

    # Port of Triton's gRPC for the clients of the door; 0: they cannot reach it.
    grpc_port = 0

    def __init__(self, client: AsyncSIEClient, questions: AsyncConnection) -> None:
        self._client = client
        self._questions = questions

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self._questions.close()

    async def encode(
        self, model: str, items: Items, seconds: float, parameters: Mapping[str, Any]
    ) -> list[EncodeResult]:
        async with self._call(parameters) as options:
            return await self._client.encode(_ensemble(model), items, options=options, timeout=seconds)

    async def score(
        self, model: str, query: Mapping[str, Any], items: Items, seconds: float, parameters: Mapping[str, Any]
    ) -> ScoreResult:
        async with self._call(parameters) as options:
            return await self._client.score(_ensemble(model), query, items, options=options, timeout=seconds)

    async def extract(
        self,
        model: str,
        items: Items,
        labels: Sequence[str],
        entities: Sequence[Any] | None,
        seconds: float,
        parameters: Mapping[str, Any],
    ) -> list[ExtractResult]:
        async with self._call(parameters) as options:
            return await self._client.extract(
                _ensemble(model), items, labels, entities, options=options, timeout=seconds
            )

    @asynccontextmanager
    async def _call(self, parameters: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Give the parameters of a request, and those that name its client's request."""
        given = {name: value for name, value in parameters.items() if value is not None}
        given.update(forwarded.get())
        yield given | {BULK: True} if bulk.get() else given

    async def capacity(self) -> Mapping[str, Any] | None:
        """Return the capacity of a cluster in the format of SIE's clients; None for one server."""
        return None

    @abstractmethod
    async def states(self) -> States:
        """Return the states of the models now."""

    def metric_parts(self) -> Mapping[str, Request]:
        """Return requests for the metrics of the backend's parts, by the name of the part."""
        return {}

    async def names(self) -> list[str]:
        """Return the names of the served models, as `org/name`."""
        return await self._client.list_models()

    async def is_live(self) -> bool:
        try:
            return bool(await self.ask("is_server_live"))
        except SIEError:
            return False

    async def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of tritonclient other than `infer` and return its result."""
        return await self._questions.ask(method, Deadline.after(QUESTION_S), **arguments)


async def spread(calls: Sequence[Callable[[float], Awaitable[Result]]], deadline: Deadline) -> list[Result]:
    """Return the results of the calls, at most MAX_CONCURRENCY at a time; an error ends them all.

    Each takes the seconds that are left; DeadlinePassed if there are none.
    """
    places = asyncio.Semaphore(MAX_CONCURRENCY)

    async def placed(call: Callable[[float], Awaitable[Result]]) -> Result:
        async with places:
            return await call(deadline.some_left_s())

    return await together(map(placed, calls))


def _ensemble(model: str) -> str:
    """Return `model`; NotServed if it is a step, which Triton would serve as a model of its own."""
    if split_profile(model)[0].endswith(STEP_SUFFIXES):
        raise NotServed(f"model: {model} is a step of a model; call the model itself")
    return model
