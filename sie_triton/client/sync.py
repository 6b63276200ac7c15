"""The blocking client."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from tenacity import Retrying

from sie_triton.client import codec
from sie_triton.client.retry import Deadline
from sie_triton.client.types import EncodeOptions, EncodeResult, ItemLike, ScoreOptions, ScoreResult

if TYPE_CHECKING:
    from typing_extensions import Unpack


# tritonclient's own 60 s would give up while a large model loads.
NETWORK_TIMEOUT_S = 600.0


class SIEClient:
    """`SIEClient("http://host:8000")`, `SIEClient("grpc://host:8001")` or `SIEClient("host:8001")`.

    May be shared by threads. Close it, or use it as a context manager. Many items are sent as several
    requests, at most `max_concurrency` at a time. `timeout`, in seconds, holds for each call as a whole;
    within it a busy server is asked again.
    """

    def __init__(self, url: str, *, timeout: float | None = None, max_concurrency: int = 4) -> None:
        self._transport, self._address = codec.parse_url(url)
        self._triton: Any = import_module(f"tritonclient.{self._transport}")
        self._timeout = timeout
        self._max_concurrency = max_concurrency
        self._score_ensembles: dict[str, str] = {}
        # tritonclient's HTTP client must stay on the thread that made it.
        self._local = threading.local()
        self._opened: list[Any] = []

    def __enter__(self) -> "SIEClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if "_pool" in self.__dict__:
            self._pool.shutdown(cancel_futures=True)
        for connection in self._opened:
            connection.close()
        self._opened.clear()

    @overload
    def encode(self, model: str, items: ItemLike, **options: "Unpack[EncodeOptions]") -> EncodeResult: ...  # type: ignore[overload-overlap]  # a str is a Sequence too

    @overload
    def encode(
        self, model: str, items: Sequence[ItemLike], **options: "Unpack[EncodeOptions]"
    ) -> list[EncodeResult]: ...

    def encode(self, model: str, items: Any, **options: Any) -> Any:
        """Embed one item (→ one result) or a list of items (→ a list, in the same order).

        Raises InputError, BusyError, LoadError or ModelError; see sie_triton.errors.
        """
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        call = codec.EncodeCall(self._triton, model, items, options)
        return call.results(self._responses(call, deadline))

    def score(
        self, model: str, query: ItemLike, items: Sequence[ItemLike], **options: "Unpack[ScoreOptions]"
    ) -> ScoreResult:
        """Rank `items` by how relevant each is to `query`; raises as `encode` does."""
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        if not items:
            return codec.score_result(model, query, [])
        call = codec.ScoreCall(self._triton, model, self._score_ensemble(model), query, items, options)
        return call.results(self._responses(call, deadline))

    def list_models(self) -> list[str]:
        """The models that are ready, as `org/name`."""
        with codec.triton_errors():
            return codec.model_names(self._connection.get_inference_statistics())

    def _score_ensemble(self, model: str) -> str:
        """A model that encodes too scores under another name."""
        if model not in self._score_ensembles:
            with codec.triton_errors():
                metadata = self._connection.get_model_metadata(codec.triton_name(model))
                has_score = self._connection.is_model_ready(codec.triton_name(model) + codec.SCORE_SUFFIX)
            self._score_ensembles[model] = codec.score_ensemble(model, metadata, has_score=has_score)
        return self._score_ensembles[model]

    def _responses(self, call: codec.Call, deadline: Deadline) -> list[Any]:
        if len(call.pieces) == 1:
            return [self._infer(call, call.pieces[0], deadline)]
        futures = [self._pool.submit(self._infer, call, piece, deadline) for piece in call.pieces]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _infer(self, call: codec.Call, piece: slice, deadline: Deadline) -> Any:
        for attempt in Retrying(**deadline.retrying()):
            with attempt, codec.triton_errors():
                return self._connection.infer(**call.arguments(piece), **deadline.arguments(self._transport))
        raise AssertionError("tenacity raises when it stops")

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._max_concurrency, "sie-client")

    @property
    def _connection(self) -> Any:
        if not hasattr(self._local, "connection"):
            waits = {"network_timeout": NETWORK_TIMEOUT_S} if self._transport == "http" else {}
            self._local.connection = self._triton.InferenceServerClient(self._address, **waits)
            self._opened.append(self._local.connection)
        return self._local.connection
