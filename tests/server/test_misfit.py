"""Messages of both clients, over both transports, if a model does not take the inputs of a call."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sie_triton import SIEClient
from sie_triton.errors import InputError
from tests.conftest import CLIP, COLBERT, CROSS_ENCODER, GLINER, MINILM, OWL, Running
from tests.support.clients import Awaited

IMAGE = {"image": b"an image"}

TAKES_NO = r"{}: {} takes no {} here; it takes {}"
MISFITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "encode, extracts by labels": (
        lambda client: client.encode(GLINER, ["a", "b"]),
        f"model: {GLINER} does not encode; it takes text, labels, entities; call extract",
    ),
    "score, encodes": (
        lambda client: client.score(MINILM, "q", ["a"]),
        f"model: {MINILM} does not score; it takes text; call encode",
    ),
    "extract, scores": (
        lambda client: client.extract(CROSS_ENCODER, "a", ["b"]),
        f"model: {CROSS_ENCODER} does not extract; it takes query, text; call score",
    ),
    "an image, texts": (
        lambda client: client.encode(MINILM, ["a", "b", IMAGE]),
        TAKES_NO.format(r"items\[2\]\.image", MINILM, "image", "text"),
    ),
    "a sound, texts and images": (
        lambda client: client.encode(CLIP, {"audio": b"a sound"}),
        TAKES_NO.format(r"items\[0\]\.audio", CLIP, "audio", "text and image"),
    ),
    "a text beside an image, images": (
        lambda client: client.extract(OWL, [IMAGE, "a"], ["b"]),
        TAKES_NO.format(r"items\[1\]\.text", OWL, "text", "image"),
    ),
    "an image, texts scored by an ensemble of their own": (
        lambda client: client.score(COLBERT, "q", [IMAGE]),
        TAKES_NO.format(r"items\[0\]\.image", COLBERT, "image", "text"),
    ),
    "an image as query, texts": (
        lambda client: client.score(CROSS_ENCODER, IMAGE, ["a"]),
        TAKES_NO.format(r"query\.image", CROSS_ENCODER, "image", "text"),
    ),
}


@pytest.fixture(scope="module", params=["http", "grpc"])
def clients(server: Running, request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    url = f"{request.param}://{getattr(server, request.param)}"
    with SIEClient(url) as blocking, Awaited(url) as awaited:
        yield [blocking, awaited]


@pytest.mark.parametrize("case", MISFITS)
def test_an_unsupported_request_error_names_what_the_model_takes(clients, case):
    call, complaint = MISFITS[case]
    for client in clients:
        for _ in range(2):  # the second time the client knows the ensemble
            with pytest.raises(InputError, match=f"^{complaint}$"):
                call(client)
