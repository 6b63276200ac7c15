"""The asyncio client: the same calls as SIEClient, awaited."""

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from tenacity import AsyncRetrying

from sie_triton.client import codec
from sie_triton.client.retry import Deadline
from sie_triton.client.sync import NETWORK_TIMEOUT_S
from sie_triton.client.types import EncodeOptions, EncodeResult, ItemLike, ScoreOptions, ScoreResult

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncSIEClient:
    """`async with AsyncSIEClient("http://host:8000") as client: …`. Belongs to one event loop.

    `timeout` and `max_concurrency` as in SIEClient.
    """

    def __init__(self, url: str, *, timeout: float | None = None, max_concurrency: int = 4) -> None:
        self._transport, self._address = codec.parse_url(url)
        self._triton: Any = import_module(f"tritonclient.{self._transport}.aio")
        self._timeout = timeout
        self._places = asyncio.Semaphore(max_concurrency)
        self._opened: Any = None
        self._score_ensembles: dict[str, str] = {}

    async def __aenter__(self) -> "AsyncSIEClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    @overload
    async def encode(self, model: str, items: ItemLike, **options: "Unpack[EncodeOptions]") -> EncodeResult: ...  # type: ignore[overload-overlap]  # a str is a Sequence too

    @overload
    async def encode(
        self, model: str, items: Sequence[ItemLike], **options: "Unpack[EncodeOptions]"
    ) -> list[EncodeResult]: ...

    async def encode(self, model: str, items: Any, **options: Any) -> Any:
        """As SIEClient.encode."""
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        call = codec.EncodeCall(self._triton, model, items, options)
        return call.results(await self._responses(call, deadline))

    async def score(
        self, model: str, query: ItemLike, items: Sequence[ItemLike], **options: "Unpack[ScoreOptions]"
    ) -> ScoreResult:
        """As SIEClient.score."""
        deadline = Deadline.after(options.pop("timeout", self._timeout))
        if not items:
            return codec.score_result(model, query, [])
        call = codec.ScoreCall(self._triton, model, await self._score_ensemble(model), query, items, options)
        return call.results(await self._responses(call, deadline))

    async def list_models(self) -> list[str]:
        """The models that are ready, as `org/name`."""
        with codec.triton_errors():
            return codec.model_names(await self._connection.get_inference_statistics())

    async def _score_ensemble(self, model: str) -> str:
        if model not in self._score_ensembles:
            with codec.triton_errors():
                metadata = await self._connection.get_model_metadata(codec.triton_name(model))
                has_score = await self._connection.is_model_ready(codec.triton_name(model) + codec.SCORE_SUFFIX)
            self._score_ensembles[model] = codec.score_ensemble(model, metadata, has_score=has_score)
        return self._score_ensembles[model]

    async def _responses(self, call: codec.Call, deadline: Deadline) -> Sequence[Any]:
        if len(call.pieces) == 1:
            return [await self._infer(call, call.pieces[0], deadline)]
        tasks = [asyncio.create_task(self._infer_in_turn(call, piece, deadline)) for piece in call.pieces]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _infer_in_turn(self, call: codec.Call, piece: slice, deadline: Deadline) -> Any:
        async with self._places:
            return await self._infer(call, piece, deadline)

    async def _infer(self, call: codec.Call, piece: slice, deadline: Deadline) -> Any:
        async for attempt in AsyncRetrying(**deadline.retrying()):
            with attempt, codec.triton_errors():
                return await self._connection.infer(**call.arguments(piece), **deadline.arguments(self._transport))
        raise AssertionError("tenacity raises when it stops")

    @property
    def _connection(self) -> Any:
        # Opened inside the event loop: both aio transports bind to the running one.
        if self._opened is None:
            waits = {"conn_timeout": NETWORK_TIMEOUT_S} if self._transport == "http" else {}
            self._opened = self._triton.InferenceServerClient(self._address, **waits)
        return self._opened
