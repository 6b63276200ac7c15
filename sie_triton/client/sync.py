"""The blocking client."""

import threading
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from sie_triton.client.codec import encode_call, model_names, parse_url, triton_errors
from sie_triton.client.types import EncodeOptions, EncodeResult, ItemLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SIEClient:
    """`SIEClient("http://host:8000")`, `SIEClient("grpc://host:8001")` or `SIEClient("host:8001")`.

    May be shared by threads. Close it, or use it as a context manager.
    """

    def __init__(self, url: str) -> None:
        scheme, self._address = parse_url(url)
        self._triton: Any = import_module(f"tritonclient.{scheme}")
        # tritonclient's HTTP client must stay on the thread that made it.
        self._local = threading.local()
        self._opened: list[Any] = []

    def __enter__(self) -> "SIEClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
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

        Raises InputError, BusyError or ModelError; see sie_triton.errors.
        """
        arguments, finish = encode_call(self._triton, model, items, options)
        with triton_errors():
            response = self._connection.infer(**arguments)
        return finish(response)

    def list_models(self) -> list[str]:
        """The models that are ready, as `org/name`."""
        with triton_errors():
            return model_names(self._connection.get_model_repository_index())

    @property
    def _connection(self) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = self._triton.InferenceServerClient(self._address)
            self._opened.append(self._local.connection)
        return self._local.connection
