"""Interface to Triton for the routes."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from sie_triton.client import AsyncSIEClient
from sie_triton.client.address import Address
from sie_triton.client.calls import STEP_SUFFIXES, ClientCall
from sie_triton.client.connections import AsyncConnection
from sie_triton.client.failures import NotServed
from sie_triton.client.known import ControllerAddress
from sie_triton.client.retry import Deadline
from sie_triton.client.types import EncodeResult, ExtractResult, ScoreResult
from sie_triton.doors.memory import hold
from sie_triton.errors import SIEError
from sie_triton.names import split_profile
from sie_triton.records.calls import CallBook
from sie_triton.settings import Settings, words

# Maximum number of concurrent requests to Triton that one large request is split into.
MAX_CONCURRENCY = 16

# Server version of Triton 25.01. Earlier versions can crash if a client cancels a gRPC call at the moment of the
# response.
HANGS_UP_SAFELY = (2, 54)

# Polling interval while Triton does not respond yet, in seconds.
LEARN_S = 1.0

# Timeout of calls to Triton other than inference, in seconds.
QUESTION_S = 5.0

Items = Sequence[Mapping[str, Any]]

# The identity of the request that this task handles, as request parameters: see telemetry/identity.py.
forwarded: ContextVar[Mapping[str, str]] = ContextVar("forwarded", default=MappingProxyType({}))


class TritonClient(AsyncSIEClient):
    """Client whose cancelled calls run to their end until `may_hang_up` confirms that Triton survives cancellation."""

    def __init__(self, url: str, controller: ControllerAddress, **options: Any) -> None:
        super().__init__(url, **options)
        self._connection.hangs_up = False
        self._controller = controller

    async def _infer(self, call: ClientCall, piece: slice, deadline: Deadline) -> Any:
        """Charge the response to the memory of its request; Failure 503 if there is too little."""
        response = await super()._infer(call, piece, deadline)
        hold(sum(map(len, response.get_response().raw_output_contents)))
        return response

    def may_hang_up(self, may: bool) -> None:
        self._connection.hangs_up = may


class Backend:
    """gRPC channel to Triton, owned by one event loop. It never retries: errors tell the client when to retry.

    The calls are those of AsyncSIEClient with lists of items, and raise the same errors; `seconds` is the timeout of a
    call. `parameters` are request parameters; those that are None were not given. If a call is cancelled, the stages
    stop computing it too.
    """

    def __init__(self, settings: Settings) -> None:
        address = f"grpc://{settings.inner_host}:{settings.grpc_port}"
        self._client = TritonClient(
            address, _controller_of(settings), max_concurrency=MAX_CONCURRENCY, is_patient=False
        )
        self._questions = AsyncConnection(Address.parse(address))  # separate, so that large requests do not delay it
        self._learning: asyncio.Task[None] | None = None
        self._status_dir = settings.status_dir
        self._calls: CallBook | None = None

    async def __aenter__(self) -> "Backend":
        self._calls = CallBook(self._status_dir)
        self._learning = asyncio.create_task(self._learn())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._learning is not None
        assert self._calls is not None
        self._learning.cancel()
        self._calls.close()
        await self._client.close()
        await self._questions.close()

    async def _learn(self) -> None:
        """Ask Triton for its version, until it responds, and allow cancellation if the version supports it."""
        while True:
            try:
                metadata = await self.ask("get_server_metadata")
            except SIEError:
                await asyncio.sleep(LEARN_S)
            else:
                self._client.may_hang_up(version_of(metadata.version) >= HANGS_UP_SAFELY)
                return

    async def encode(
        self, model: str, items: Items, seconds: float, parameters: Mapping[str, Any]
    ) -> list[EncodeResult]:
        with self._call(parameters) as options:
            return await self._client.encode(_ensemble(model), items, options=options, timeout=seconds)

    async def score(
        self, model: str, query: Mapping[str, Any], items: Items, seconds: float, parameters: Mapping[str, Any]
    ) -> ScoreResult:
        with self._call(parameters) as options:
            return await self._client.score(_ensemble(model), query, items, options=options, timeout=seconds)

    async def extract(
        self, model: str, items: Items, labels: Sequence[str], seconds: float, parameters: Mapping[str, Any]
    ) -> list[ExtractResult]:
        with self._call(parameters) as options:
            return await self._client.extract(_ensemble(model), items, labels, options=options, timeout=seconds)

    @contextmanager
    def _call(self, parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Give the parameters of a request, and those that name its call and its client's request."""
        assert self._calls is not None
        with self._calls.call() as token:
            yield {**_without_none(parameters), **token, **forwarded.get()}

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


def _controller_of(settings: Settings) -> ControllerAddress:
    token = words(settings.auth_tokens)[0] if settings.asks_for_token else ""
    return ControllerAddress(f"{settings.inner_host}:{settings.controller_port}", token)


def _without_none(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def version_of(text: str) -> tuple[int, ...]:
    """
    >>> version_of("2.51.0"), version_of("2.54.0dev")
    ((2, 51, 0), (2, 54, 0))
    """
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def _ensemble(model: str) -> str:
    """Return `model`; NotServed if it is a step, which Triton would serve as a model of its own."""
    if split_profile(model)[0].endswith(STEP_SUFFIXES):
        raise NotServed(f"model: {model} is a step of a model; call the model itself")
    return model
