"""Client for asyncio, with the calls of SIEClient as coroutines."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from sie_triton.client.address import Address
from sie_triton.client.calls import ClientCall
from sie_triton.client.connections import AsyncConnection
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

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncSIEClient(Conversation):
    """Client for asyncio: `async with AsyncSIEClient("http://host:8000") as client: …`. Belongs to one event loop.

    The arguments are those of SIEClient.
    """

    def _prepare(self) -> None:
        self._opened = self._connect(self._address)
        self._places = asyncio.Semaphore(self._max_concurrency)

    def _connect(self, address: Address) -> AsyncConnection:
        return AsyncConnection(address)

    async def __aenter__(self) -> "AsyncSIEClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; later calls raise Cancelled."""
        if "_waiting" in self.__dict__:
            self._waiting.shutdown(wait=False, cancel_futures=True)
        await self._connection.close()

    @overload
    async def encode(self, model: str, items: ItemLike, **options: "Unpack[EncodeOptions]") -> EncodeResult: ...  # type: ignore[overload-overlap]  # a str is a Sequence too

    @overload
    async def encode(
        self, model: str, items: Sequence[ItemLike], **options: "Unpack[EncodeOptions]"
    ) -> list[EncodeResult]: ...

    async def encode(self, model: str, items: Any, **options: Any) -> Any:
        """Embed one item or a list of items, as SIEClient.encode does."""
        return await self._encode(model, items, options)

    async def score(
        self, model: str, query: ItemLike, items: Sequence[ItemLike], **options: "Unpack[ScoreOptions]"
    ) -> ScoreResult:
        """Rank items by relevance to a query, as SIEClient.score does."""
        return cast(ScoreResult, await self._score(model, query, items, {**options}))

    @overload
    async def extract(  # type: ignore[overload-overlap]  # a str is a Sequence too
        self,
        model: str,
        items: ItemLike,
        labels: Sequence[str] = (),
        entities: Sequence[Mapping[str, Any]] | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> ExtractResult: ...

    @overload
    async def extract(
        self,
        model: str,
        items: Sequence[ItemLike],
        labels: Sequence[str] = (),
        entities: Sequence[Sequence[Mapping[str, Any]]] | None = None,
        **options: "Unpack[ExtractOptions]",
    ) -> list[ExtractResult]: ...

    async def extract(
        self, model: str, items: Any, labels: Sequence[str] = (), entities: Any = None, **options: Any
    ) -> Any:
        """Extract information from one item or a list of items, as SIEClient.extract does."""
        return await self._extract(model, items, labels, entities, options)

    async def list_models(self) -> list[str]:
        """Return the names of the models that are ready, as `org/name`."""
        return await self._served()

    @property
    def _connection(self) -> AsyncConnection:
        return self._opened

    async def _call(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        return await self._connection.ask(method, deadline, **arguments)

    async def _serve(self, controller: ControllerAddress, model: str, seconds: float) -> bool:
        """Call serve_known on a thread of this client: it may block for minutes."""
        return await asyncio.get_running_loop().run_in_executor(self._waiting, serve_known, controller, model, seconds)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @cached_property
    def _waiting(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(16, "sie-client")

    async def _responses(self, call: ClientCall, deadline: Deadline) -> Sequence[Any]:
        if len(call.pieces) == 1:
            return [await self._infer(call, call.pieces[0], deadline)]
        return await together(self._infer_in_turn(call, piece, deadline) for piece in call.pieces)

    async def _infer_in_turn(self, call: ClientCall, piece: slice, deadline: Deadline) -> Any:
        async with self._places:
            return await self._infer(call, piece, deadline)


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all calls, which run concurrently; the first error cancels the others."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
