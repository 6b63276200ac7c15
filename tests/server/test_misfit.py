"""Messages of both clients, over both transports, if a model does not take the inputs of a call."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sie_triton import SIEClient
from sie_triton.errors import InputError
from tests.conftest import CLAP, CLIP, COLBERT, CROSS_ENCODER, FLORENCE2, GLINER, MINILM, OWL, Running
from tests.support.clients import Awaited

IMAGE, AUDIO, DOCUMENT = {"image": b"an image"}, {"audio": b"a sound"}, {"document": b"a document"}

MISFITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "encode, scores": (
        lambda client: client.encode(CROSS_ENCODER, "a"),
        f"model: {CROSS_ENCODER} does not encode; it takes query, text; call score",
    ),
    "encode an image, scores": (
        lambda client: client.encode(CROSS_ENCODER, IMAGE),
        f"model: {CROSS_ENCODER} does not encode; it takes query, text; call score",
    ),
    "encode, extracts by labels": (
        lambda client: client.encode(GLINER, ["a", "b"]),
        f"model: {GLINER} does not encode; it takes text, labels, entities; call extract",
    ),
    "encode, extracts from images": (
        lambda client: client.encode(FLORENCE2, "a"),
        f"model: {FLORENCE2} does not encode; it takes image, labels, entities; call extract",
    ),
    "score, encodes": (
        lambda client: client.score(MINILM, "q", ["a"]),
        f"model: {MINILM} does not score; it takes text; call encode",
    ),
    "score, extracts": (
        lambda client: client.score(GLINER, "q", ["a"]),
        f"model: {GLINER} does not score; it takes text, labels, entities; call extract",
    ),
    "extract, encodes": (
        lambda client: client.extract(MINILM, "a", ["b"]),
        f"model: {MINILM} does not extract; it takes text; call encode",
    ),
    "extract, scores": (
        lambda client: client.extract(CROSS_ENCODER, "a", ["b"]),
        f"model: {CROSS_ENCODER} does not extract; it takes query, text; call score",
    ),
    "an image, texts": (
        lambda client: client.encode(MINILM, ["a", "b", IMAGE]),
        rf"items\[2\]\.image: {MINILM} takes no image here; it takes text",
    ),
    "only an image, texts": (
        lambda client: client.encode(MINILM, IMAGE),
        rf"items\[0\]\.image: {MINILM} takes no image here; it takes text",
    ),
    "a sound, texts": (
        lambda client: client.encode(MINILM, AUDIO),
        rf"items\[0\]\.audio: {MINILM} takes no audio here; it takes text",
    ),
    "a document, texts": (
        lambda client: client.extract(GLINER, ["a", DOCUMENT], ["b"]),
        rf"items\[1\]\.document: {GLINER} takes no document here; it takes text",
    ),
    "a sound, texts and images": (
        lambda client: client.encode(CLIP, AUDIO),
        rf"items\[0\]\.audio: {CLIP} takes no audio here; it takes text and image",
    ),
    "an image, texts and sounds": (
        lambda client: client.encode(CLAP, IMAGE),
        rf"items\[0\]\.image: {CLAP} takes no image here; it takes text and audio",
    ),
    "a text, images": (
        lambda client: client.extract(OWL, "a", ["b"]),
        rf"items\[0\]\.text: {OWL} takes no text here; it takes image",
    ),
    "a text beside an image, images": (
        lambda client: client.extract(OWL, [IMAGE, "a"], ["b"]),
        rf"items\[1\]\.text: {OWL} takes no text here; it takes image",
    ),
    "an image, scored texts": (
        lambda client: client.score(CROSS_ENCODER, "q", ["a", IMAGE]),
        rf"items\[1\]\.image: {CROSS_ENCODER} takes no image here; it takes text",
    ),
    "an image, texts scored by an ensemble of their own": (
        lambda client: client.score(COLBERT, "q", [IMAGE]),
        rf"items\[0\]\.image: {COLBERT} takes no image here; it takes text",
    ),
    "an image as query, texts": (
        lambda client: client.score(CROSS_ENCODER, IMAGE, ["a"]),
        rf"query\.image: {CROSS_ENCODER} takes no image here; it takes text",
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
