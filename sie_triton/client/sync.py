"""Blocking client."""

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast, overload

from sie_triton.client.calls import ClientCall
from sie_triton.client.connections import CLOSED, GrpcConnection, HttpConnection, connection_to, finished
from sie_triton.client.conversation import Conversation
from sie_triton.client.known import ControllerAddress, serve_known
from sie_triton.client.retry import Deadline
from sie_triton.client.types import (
    EncodeOptions,
    EncodeResult,
    ExtractOptions,
    ExtractResult,
    ItemLike,
    ScoreOptions,
    ScoreResult,
)
from sie_triton.errors import Cancelled

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SIEClient(Conversation):
    """Client of a server at `http://host:8000`, `grpc://host:8001` or `host:8001` (gRPC).

    Thread-safe. At most `max_concurrency` requests are sent at a time. `timeout`, in seconds, covers a whole call with
    its retries. None means 600 s for each request, and 30 s of retries. With `retry=False` a busy server raises
    BusyError at once.

    The client asks the controller to serve a known model that is not served. `controller_url` is the controller's
    address; None means the default port on the host of `url`, none with TLS, and "" does not ask.

    `token` is sent to both as bearer token. With `https://` or `grpcs://`, for a proxy in front of Triton or of a
    gateway, `ca_file` names the certificates to trust, in PEM.
    """

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._opened: GrpcConnection | HttpConnection | None = None
        self._closing: weakref.finalize[..., SIEClient] | None = None
        self._is_closed = False

    def __enter__(self) -> "SIEClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end calls in progress; these and later calls raise Cancelled."""
        self._is_closed = True
        if "_pool" in self.__dict__:
            self._pool.shutdown(cancel_futures=True)
        with self._lock:
            if self._closing is not None:
                self._closing()

    @overload
    def encode(self, model: str, items: ItemLike, **options: "Unpack[EncodeOptions]") -> EncodeResult: ...  # type: ignore[overload-overlap]  # a str is a Sequence too

    @overload
    def encode(
        self, model: str, items: Sequence[ItemLike], **options: "Unpack[EncodeOptions]"
    ) -> list[EncodeResult]: ...

    def encode(self, model: str, items: Any, **options: Any) -> Any:
        """Embed an item and return its EncodeResult, or a list of items and return a list in the same order."""
        return finished(self._encode(model, items, options))

    def score(
        self, model: str, query: ItemLike, items: Sequence[ItemLike], **options: "Unpack[ScoreOptions]"
    ) -> ScoreResult:
        """Return a ScoreResult that ranks `items` by their relevance to `query`."""
        return cast(ScoreResult, finished(self._score(model, query, items, {**options})))

    @overload
    def extract(  # type: ignore[overload-overlap]  # a str is a Sequence too
        self,
        model: str,
        items: ItemLike,
        labels: Sequence[str] = (),
        entities: Sequence[Mapping[str, Any]] | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> ExtractResult: ...

    @overload
    def extract(
        self,
        model: str,
        items: Sequence[ItemLike],
        labels: Sequence[str] = (),
        entities: Sequence[Sequence[Mapping[str, Any]]] | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> list[ExtractResult]: ...

    def extract(self, model: str, items: Any, labels: Sequence[str] = (), entities: Any = None, **options: Any) -> Any:
        """Return the ExtractResult of an item, or those of a list of items.

        `labels` name what to find, for models without labels of their own. `entities`, each with `start` and `end`, are
        for models that find relations between them: a list for one item, a list of lists for a list of items.
        """
        return finished(self._extract(model, items, labels, entities, options))

    def list_models(self) -> list[str]:
        """Return the names of the models that are ready, as `org/name`."""
        return finished(self._served())

    async def _call(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        return self._connection.ask(method, deadline, **arguments)

    async def _serve(self, controller: ControllerAddress, model: str, seconds: float) -> bool:
        return serve_known(controller, model, seconds)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _responses(self, call: ClientCall, deadline: Deadline) -> list[Any]:
        if len(call.pieces) == 1:
            return [await self._infer(call, call.pieces[0], deadline)]
        futures = [self._pool.submit(self._inferred, call, piece, deadline) for piece in call.pieces]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _inferred(self, call: ClientCall, piece: slice, deadline: Deadline) -> Any:
        return finished(self._infer(call, piece, deadline))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._max_concurrency, "sie-client")

    @property
    def _connection(self) -> GrpcConnection | HttpConnection:
        with self._lock:
            if self._is_closed:
                raise Cancelled(CLOSED)
            if self._opened is None or self._process != os.getpid():
                self._opened = self._open()
            return self._opened

    def _open(self) -> GrpcConnection | HttpConnection:
        if self._closing is not None:  # after a fork: threads and connections exist only in the parent process
            self._closing.detach()
            self.__dict__.pop("_pool", None)
        opened = connection_to(self._address)
        self._process = os.getpid()
        self._closing = weakref.finalize(self, opened.close)
        return opened
