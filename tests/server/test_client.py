"""SIEClient and its asyncio twin against a server that refuses: splitting, retries, deadlines."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.texts import texts
from sie_triton import Item, SIEClient
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


def test_a_full_server_is_retried(strict_server):
    before = strict_server.status(TINY, "preprocess")["num_refused"]
    some = texts(32 * 40)
    with SIEClient(strict_server.grpc, timeout=60) as client, ThreadPoolExecutor(32) as pool:
        results = list(pool.map(lambda i: client.encode(TINY, some[i * 40 : (i + 1) * 40]), range(32)))
    assert all(len(result) == 40 for result in results)
    assert strict_server.status(TINY, "preprocess")["num_refused"] > before


def test_an_unknown_model_error_lists_the_served_models(client):
    served = f"model: test/tinny is not served; served models: {TINY}, {TINY_NO_HOOK}, .*{MINILM}.*; {UNASKED}$"
    for ask in (lambda: client.encode("test/tinny", "a"), lambda: client.score("test/tinny", "a", ["b"])):
        with pytest.raises(InputError, match=served):
            ask()


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
