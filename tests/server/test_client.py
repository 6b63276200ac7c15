"""SIEClient and its asyncio twin against a server that refuses: splitting, retries, deadlines."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sie_triton import AsyncSIEClient, Item, SIEClient
from sie_triton.cli.perf.workload import texts
from sie_triton.client.connections import GrpcConnection, HttpConnection
from sie_triton.client.failures import SEE_STATUS
from sie_triton.errors import BusyError, InputError
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.companions import fork_server
from sie_triton.server.launch import Server
from tests.conftest import MINILM, TINY, TINY_NO_HOOK, Running, fresh_settings, tiny_model_file
from tests.support.parity import TO_ITSELF, assert_parity

LIMIT = 4

# End of the error about a model that is not served, if no controller answers.
UNASKED = f"{SEE_STATUS}; .* 127.0.0.1:8003: .*controller_url"


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory, tiny_directory) -> Iterator[Running]:
    """Takes four requests at a time."""
    root = tmp_path_factory.mktemp("strict")
    (root / "tiny.yaml").write_text(tiny_model_file(TINY, tiny_directory))
    settings = fresh_settings(root, models_dir=root, max_concurrent_requests=LIMIT)
    write_repository(root / "model_repository", settings, [TINY], runtime=settings.runtime)
    with fork_server(settings), Server(settings, root / "model_repository") as running:
        running.wait_ready()
        with SIEClient(f"127.0.0.1:{settings.grpc_port}") as client:
            client.encode(TINY, "load")
        yield Running(settings, running.pid, running.log_path)


@pytest.fixture(params=["http", "grpc"])
def address(strict_server: Running, request: pytest.FixtureRequest) -> str:
    return f"{request.param}://{getattr(strict_server, request.param)}"


def test_a_large_request_is_split_and_comes_back_in_order(client, server):
    many = [Item(text=text, id=str(i)) for i, text in enumerate(texts(1500))]
    before = server.status(TINY)["num_requests"]
    results = client.encode(TINY, many)
    num_requests = server.status(TINY)["num_requests"] - before
    assert 3 <= num_requests <= 12
    assert [result["id"] for result in results] == [item["id"] for item in many]
    some = [0, 511, 512, 1499]
    alone = [client.encode(TINY, many[i])["dense"] for i in some]
    assert_parity(np.stack([results[i]["dense"] for i in some]), np.stack(alone), TO_ITSELF)


def test_the_asyncio_client_splits_too(server):
    async def ask():
        async with AsyncSIEClient(f"http://{server.http}") as client:
            return await client.encode(TINY, texts(1500))

    assert len(asyncio.run(ask())) == 1500


def test_a_bad_item_fails_the_whole_call_at_once(client):
    started = time.monotonic()
    with pytest.raises(InputError, match="dimensions"):
        client.encode(TINY, texts(3000), options={"dimensions": 65})
    assert time.monotonic() - started < 5


def test_a_full_server_is_retried(strict_server, address):
    before = strict_server.status(TINY, "preprocess")["num_refused"]
    some = texts(32 * 40)
    with SIEClient(address, timeout=60) as client, ThreadPoolExecutor(32) as pool:
        results = list(pool.map(lambda i: client.encode(TINY, some[i * 40 : (i + 1) * 40]), range(32)))
    assert all(len(result) == 40 for result in results)
    assert strict_server.status(TINY, "preprocess")["num_refused"] > before


def test_the_asyncio_client_retries_a_full_server(strict_server):
    async def ask():
        async with AsyncSIEClient(strict_server.grpc, timeout=60) as client:
            return await asyncio.gather(*(client.encode(TINY, texts(40)) for _ in range(32)))

    before = strict_server.status(TINY, "preprocess")["num_refused"]
    assert len(asyncio.run(ask())) == 32
    assert strict_server.status(TINY, "preprocess")["num_refused"] > before


@pytest.mark.parametrize("connection", [GrpcConnection, HttpConnection])
def test_retries_end_with_the_callers_time(server, connection, monkeypatch):
    """The server is always busy."""
    asked = []

    def busy(self, method, deadline, **arguments):
        asked.append(arguments["timeout"])
        raise BusyError("busy")

    monkeypatch.setattr(connection, "ask", busy)
    address = f"grpc://{server.grpc}" if connection is GrpcConnection else f"http://{server.http}"
    with SIEClient(address) as client, pytest.raises(BusyError, match=r"busy|timeout: passed"):
        client.encode(TINY, "text", timeout=2)
    assert len(asked) > 1
    assert asked == sorted(asked, reverse=True)


def test_invalid_input_is_not_retried(strict_server, address):
    before = strict_server.status(TINY, "preprocess")["num_requests"]
    with SIEClient(address) as client, pytest.raises(InputError):
        client.encode(TINY, "text", options={"dimensions": 0})
    assert strict_server.status(TINY, "preprocess")["num_requests"] == before + 1


def test_an_unknown_model_error_lists_the_served_models(client):
    served = f"model: test/tinny is not served; served models: {TINY}, {TINY_NO_HOOK}, .*{MINILM}.*; {UNASKED}$"
    for ask in (lambda: client.encode("test/tinny", "a"), lambda: client.score("test/tinny", "a", ["b"])):
        with pytest.raises(InputError, match=served):
            ask()


def test_the_asyncio_client_lists_the_served_models(server):
    async def ask():
        async with AsyncSIEClient(server.grpc) as client:
            served = f"model: minilm is not served; served models: .*MiniLM.*; {UNASKED}$"
            with pytest.raises(InputError, match=served):
                await client.encode("minilm", ["a"] * 600)

    asyncio.run(ask())


def test_a_call_ends_at_its_timeout(client):
    started = time.monotonic()
    with pytest.raises(BusyError, match="timeout"):
        client.encode(TINY, texts(20_000), timeout=0.3)
    assert time.monotonic() - started < 5


def test_an_error_names_the_item_by_its_place_in_the_call(client):
    """Of items that are sent as several requests, too."""
    with pytest.raises(InputError, match=r"^text\[1\]: has 2000001 characters") as caught:
        client.encode(TINY, ["a", "b" * 2_000_001])
    assert caught.value.field == "text[1]"
