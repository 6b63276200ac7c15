"""The asyncio client: the same calls as SIEClient, awaited."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from sie_triton.client.codec import encode_call, model_names, parse_url, triton_errors
from sie_triton.client.types import EncodeOptions, EncodeResult, ItemLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncSIEClient:
    """`async with AsyncSIEClient("http://host:8000") as client: …`. Belongs to one event loop."""

    def __init__(self, url: str) -> None:
        scheme, self._address = parse_url(url)
        self._triton: Any = import_module(f"tritonclient.{scheme}.aio")
        self._opened: Any = None

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
        arguments, finish = encode_call(self._triton, model, items, options)
        with triton_errors():
            response = await self._connection.infer(**arguments)
        return finish(response)

    async def list_models(self) -> list[str]:
        """The models that are ready, as `org/name`."""
        with triton_errors():
            return model_names(await self._connection.get_model_repository_index())

    @property
    def _connection(self) -> Any:
        # Opened inside the event loop: both aio transports bind to the running one.
        if self._opened is None:
            self._opened = self._triton.InferenceServerClient(self._address)
        return self._opened
