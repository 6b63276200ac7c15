"""The backend of a door: one Triton and its controller."""

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from http.client import HTTPException
from time import monotonic
from typing import Any

from sie_triton.client import AsyncSIEClient
from sie_triton.client.address import Address
from sie_triton.client.calls import ClientCall
from sie_triton.client.connections import AsyncConnection
from sie_triton.client.failures import StageDied
from sie_triton.client.known import ControllerAddress
from sie_triton.client.retry import Deadline
from sie_triton.client.types import EncodeResult
from sie_triton.doors.backend import MAX_CONCURRENCY, Backend, Items, States, bulk
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.memory import hold
from sie_triton.doors.shared_encodes import SharedEncodes
from sie_triton.errors import SIEError
from sie_triton.records.calls import CallBook, CallLost, unless_lost
from sie_triton.settings import Settings
from sie_triton.settings.secrets import tokens

# Server version of Triton 25.01. Earlier versions can crash if a client cancels a gRPC call at the moment of the
# response.
HANGS_UP_SAFELY = (2, 54)


class TritonClient(AsyncSIEClient):
    """Client whose cancelled calls run to their end until `may_hang_up` confirms that Triton survives cancellation."""

    def __init__(self, url: str, settings: Settings, **options: Any) -> None:
        super().__init__(url, **options)
        self._connection.hangs_up = False
        self._settings = settings
        self._controller = ControllerAddress(f"{settings.inner_host}:{settings.controller_port}")

    async def _infer(self, call: ClientCall, piece: slice, deadline: Deadline) -> Any:
        """Charge the response to the memory of its request; Failure 503 if there is too little."""
        response = await super()._infer(call, piece, deadline)
        hold(sum(map(len, response.get_response().raw_output_contents)))
        return response

    async def _serve(self, controller: ControllerAddress, model: str, seconds: float) -> bool:
        return await super()._serve(controller._replace(token=_token(self._settings)), model, seconds)

    def may_hang_up(self, may: bool) -> None:
        self._connection.hangs_up = may


class TritonBackend(Backend):
    """gRPC channel to Triton. If a call is cancelled, the stages stop computing it too."""

    def __init__(self, settings: Settings, limits: DoorLimits = DoorLimits()) -> None:
        address = f"grpc://{settings.inner_host}:{settings.grpc_port}"
        self._triton = TritonClient(address, settings, max_concurrency=MAX_CONCURRENCY, retry=False)
        # The second connection is separate, so that large requests do not delay questions.
        super().__init__(self._triton, AsyncConnection(Address.parse(address)))
        self.grpc_port = 0 if settings.asks_for_token else settings.grpc_port
        self._settings, self._limits = settings, limits
        self._learning: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._calls: CallBook | None = None
        self._encodes = SharedEncodes(super().encode, settings.runtime.request_limit, limits)
        self._bulk_encodes = SharedEncodes.of_batches(self._encode_in_bulk, limits)
        self._bulk_places = asyncio.Semaphore(limits.batch.num_calls)

    async def __aenter__(self) -> "TritonBackend":
        self._calls = CallBook(self._settings.status_dir)
        self._learning = asyncio.create_task(self._learn())
        self._looking = asyncio.create_task(self._end_lost(self._calls))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._learning is not None
        assert self._looking is not None
        self._learning.cancel()
        self._looking.cancel()
        await super().__aexit__()

    async def _learn(self) -> None:
        """Ask Triton for its version, until it responds, and allow cancellation if the version supports it."""
        while True:
            try:
                metadata = await self.ask("get_server_metadata")
            except SIEError:
                await asyncio.sleep(self._limits.version_poll_s)
            else:
                self._triton.may_hang_up(version_of(metadata.version) >= HANGS_UP_SAFELY)
                return

    async def _end_lost(self, calls: CallBook) -> None:
        """Periodically end the calls that Triton will not answer."""
        while True:
            await asyncio.sleep(self._limits.lost_call_poll_s)
            calls.end_lost()

    async def encode(
        self, model: str, items: Items, seconds: float, parameters: Mapping[str, Any]
    ) -> list[EncodeResult]:
        encodes = self._bulk_encodes if bulk.get() else self._encodes
        return await encodes.encode(model, items, seconds, parameters)

    async def _encode_in_bulk(self, *given: Any) -> list[EncodeResult]:
        bulk.set(True)  # a shared call has a context of its own
        return await super().encode(*given)

    @asynccontextmanager
    async def _call(self, parameters: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Give the parameters of a request. StageDied if a stage has died with it."""
        assert self._calls is not None
        call = self._calls.call()
        async with self._bulk_places if bulk.get() else nullcontext():
            with call as token:
                try:
                    async with unless_lost(call), super()._call(parameters) as given:
                        yield {**given, **token}
                except CallLost as exc:
                    raise StageDied(str(exc)) from exc

    def metric_parts(self) -> Mapping[str, urllib.request.Request]:
        triton_metrics = f"http://{self._settings.inner_host}:{self._settings.metrics_port}/metrics"
        return {
            "controller": _of_controller(self._settings, "/metrics"),
            "triton": urllib.request.Request(triton_metrics),
        }

    async def states(self) -> States:
        return await asyncio.to_thread(self._ask_controller)

    def _ask_controller(self) -> States:
        try:
            with urllib.request.urlopen(_of_controller(self._settings, "/v1/models"), timeout=2.0) as answer:
                found = json.loads(answer.read())
            models = {each["model"]: each for each in found["models"]}
            return States(found.get("unserved", {}), models, found["memory"], monotonic())
        except (OSError, HTTPException, ValueError, KeyError):
            return States({}, {}, {}, monotonic())


def _token(settings: Settings) -> str:
    """Return a token that the controller accepts now; empty if it needs none."""
    return tokens(settings.auth_tokens)[0] if settings.asks_for_token else ""


def _of_controller(settings: Settings, path: str) -> urllib.request.Request:
    request = urllib.request.Request(f"http://{settings.inner_host}:{settings.controller_port}{path}")
    if token := _token(settings):
        request.add_header("Authorization", f"Bearer {token}")
    return request


def version_of(text: str) -> tuple[int, ...]:
    """
    >>> version_of("2.51.0"), version_of("2.54.0dev")
    ((2, 51, 0), (2, 54, 0))
    """
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
