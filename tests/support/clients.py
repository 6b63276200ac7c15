"""The blocking client and the asyncio client, called alike."""

import asyncio
from typing import Any

import pytest

from sie_triton import AsyncSIEClient, SIEClient

MODEL = "org/model"


class Awaited:
    """AsyncSIEClient, called as SIEClient is."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncSIEClient(url, **options)

    def __enter__(self) -> "Awaited":
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def close(self) -> None:
        self._runner.run(self._client.close())

    def encode(self, *arguments: Any, **options: Any) -> Any:
        return self._runner.run(self._client.encode(*arguments, **options))

    def score(self, *arguments: Any, **options: Any) -> Any:
        return self._runner.run(self._client.score(*arguments, **options))

    def extract(self, *arguments: Any, **options: Any) -> Any:
        return self._runner.run(self._client.extract(*arguments, **options))


KINDS = pytest.mark.parametrize("kind", [SIEClient, Awaited], ids=["blocking", "asyncio"])


def raises_exactly(call: Any, error: type[Exception], match: str) -> None:
    """Call `call`, which raises `error` itself and no subclass of it."""
    with pytest.raises(error, match=match) as caught:
        call()
    assert type(caught.value) is error
