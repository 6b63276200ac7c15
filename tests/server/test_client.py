"""SIEClient against a real server: splitting, deadlines, errors."""

import time

import numpy as np
import pytest

from benchmarks.texts import texts
from sie_triton import Item
from sie_triton.client.failures import SEE_STATUS
from sie_triton.errors import BusyError, InputError
from tests.conftest import TINY, TINY_NO_HOOK
from tests.support.parity import TO_ITSELF, assert_parity

# End of the error about a model that is not served, if no controller answers.
UNASKED = f"{SEE_STATUS}; .* 127.0.0.1:8003: .*controller_url .*"


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


def test_an_unknown_model_error_lists_the_served_models(client):
    served = f"model: test/tinny is not served; served models: {TINY}, {TINY_NO_HOOK}, .*; {UNASKED}$"
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
