"""Connections with one method, `ask`, over tritonclient's modules: it keeps the deadline and raises our errors.

tritonclient's blocking HTTP client waits forever for a silent server and keeps a gevent event loop for each thread that
used it. The blocking client therefore uses the asyncio client, on a separate thread.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, TypeVar

from sie_triton.client.address import Address
from sie_triton.client.door import refuse_door
from sie_triton.client.failures import NotTriton, is_of_a_step, our_errors, unreachable, was_reached
from sie_triton.client.limits import ClientLimits
from sie_triton.client.retry import NETWORK_TIMEOUT_S, Deadline
from sie_triton.errors import BusyError, Cancelled

T = TypeVar("T")

CLOSED = "the client is closed; create a new one"

# gRPC channel options: tritonclient's message limit, INT32_MAX bytes; and a short backoff, so that a restarted server
# is found within a second instead of two minutes.
CHANNEL = [
    ("grpc.max_send_message_length", 2**31 - 1),
    ("grpc.max_receive_message_length", 2**31 - 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class AsyncConnection:
    """Connection of one event loop, opened by the first call of `ask`. `is_met`: the server has responded before.

    `hangs_up`: cancelling `ask` cancels its gRPC call. Otherwise the call runs to its end and its response is dropped:
    up to 24.12, Triton can crash if a client cancels a call at the moment of the response.
    """

    def __init__(self, address: Address, module: str = "") -> None:
        usual = "sie_triton.client.grpc_aio" if address.transport == "grpc" else "tritonclient.http.aio"
        self.triton: Any = import_module(module or usual)
        self.is_met = False
        self.hangs_up = True
        self._address = address
        self._opened: Any = None
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        if self._opened is not None:
            await self._opened.close()

    async def ask(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        """Call one of tritonclient's methods and return its result."""
        try:
            with our_errors(self._address, deadline.left_s):
                answer = await self._send(method, deadline.wait_s(self._address.transport), arguments)
        except NotTriton:
            await self._refuse_door()
            raise
        except BusyError as exc:
            is_doubtful = self._address.transport == "grpc" and not is_of_a_step(exc)
            if is_doubtful and not (await self._is_live() if deadline.left_s else was_reached(str(exc))):
                if not self.is_met:
                    await self._refuse_door()
                raise unreachable(self._address, exc) from exc
            raise
        self.is_met = True
        return answer

    async def _send(self, method: str, seconds: float, arguments: dict[str, Any]) -> Any:
        send = getattr(self._client(), method)
        if self._address.transport == "grpc":
            arguments |= {"client_timeout": seconds, "headers": self._address.headers}
            if method == "infer":
                return await send(hangs_up=self.hangs_up, **arguments)
            call = send(**arguments)
            return await (call if self.hangs_up else _to_its_end(call))
        async with asyncio.timeout(seconds):  # the timeout also closes the connection
            return await send(headers=self._address.headers, **arguments)

    async def _refuse_door(self) -> None:
        await asyncio.to_thread(refuse_door, self._address)

    async def _is_live(self) -> bool:
        try:
            with our_errors(self._address, ClientLimits.live_probe_s):
                await self._send("is_server_live", ClientLimits.live_probe_s, {})
        except BusyError:
            return False
        return True

    def _client(self) -> Any:
        if self._is_closed:
            raise Cancelled(CLOSED)
        if self._opened is None:
            is_grpc = self._address.transport == "grpc"
            options = grpc_options(self._address) if is_grpc else _http_options(self._address)
            self._opened = self.triton.InferenceServerClient(self._address.target, **options)
        return self._opened


def grpc_options(address: Address) -> dict[str, Any]:
    """Return the arguments of tritonclient's gRPC clients."""
    secure = {"ssl": True, "root_certificates": address.ca_file or None} if address.is_secure else {}
    return {"channel_args": CHANNEL, **secure}


def _http_options(address: Address) -> dict[str, Any]:
    secure = {"ssl": True, "ssl_context": address.tls_context()} if address.is_secure else {}
    return {"conn_timeout": NETWORK_TIMEOUT_S, **secure}


async def _to_its_end(call: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.create_task(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark the exception as retrieved
        raise


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a coroutine of the blocking client waits")


def _closed() -> None:
    """Close nothing."""


class GrpcConnection(AsyncConnection):
    """Thread-safe gRPC connection of the blocking client, whose coroutines block instead of waiting."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, "tritonclient.grpc")
        self._client()

    def close(self) -> None:  # type: ignore[override]
        self._opened.close()
        self._opened.close = _closed  # its __del__ closes it again, which fails at the end of the interpreter

    def ask(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        """Call one of tritonclient's methods and return its result, as AsyncConnection.ask does."""
        return finished(super().ask(method, deadline, **arguments))

    async def _send(self, method: str, seconds: float, arguments: dict[str, Any]) -> Any:
        return getattr(self._opened, method)(client_timeout=seconds, headers=self._address.headers, **arguments)

    async def _refuse_door(self) -> None:
        refuse_door(self._address)


class HttpConnection:
    """Thread-safe HTTP connection: an AsyncConnection on the event loop of a separate thread."""

    def __init__(self, address: Address) -> None:
        self._connection = AsyncConnection(address)
        self.triton = self._connection.triton
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="sie-client-http", daemon=True)
        self._thread.start()

    @property
    def is_met(self) -> bool:
        return self._connection.is_met

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        if threading.current_thread() is not self._thread:  # the garbage collector may call this on any thread
            self._thread.join()

    def ask(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        """Call one of tritonclient's methods and return its result, as AsyncConnection.ask does."""
        answer = asyncio.run_coroutine_threadsafe(self._connection.ask(method, deadline, **arguments), self._loop)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise Cancelled(CLOSED) from None
        finally:
            answer.cancel()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._keep_open())

    async def _keep_open(self) -> None:
        await self._is_over.wait()
        await self._connection.close()


def connection_to(address: Address) -> GrpcConnection | HttpConnection:
    return HttpConnection(address) if address.transport == "http" else GrpcConnection(address)
