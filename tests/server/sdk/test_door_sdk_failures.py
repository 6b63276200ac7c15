"""Failures as SIE's own SDK meets them, sync at one server and async at a cluster in front of it.

The SDK tells the test before it waits; the test then ends the trouble, and the SDK's next try succeeds.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import psutil
import pytest

from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from tests.server.conftest import opened
from tests.server.sdk.conftest import COLD, GONE, WARM, Provoked, silent
from tests.server.sdk.test_door_sdk import KINDS, refused
from tests.support.controller import wait_for
from tests.support.in_cluster import cluster_before, is_ready
from tests.support.killing import part
from tests.support.sdk import Sdk

TOKEN = "of-a-client"
MAX_MEMORY_BYTES = 900_000

# A request holds at least four times its body: one of this item has room, and two have not.
ITEM = {"text": "vines " * 20_000}


@dataclass(frozen=True)
class Place:
    """What the SDK calls."""

    name: str
    url: str
    served: Provoked
    interpreter: object

    def client(self, api_key: str = TOKEN, **headers: str) -> Sdk:
        return Sdk(self.interpreter, KINDS[self.name], self.url, api_key, **headers)


@pytest.fixture(scope="module", params=["server", "cluster"])
def place(request, served, interpreter, tmp_path_factory) -> Iterator[Place]:
    settings = served.settings.model_copy(update={"worker_id": "w0"})
    with ExitStack() as stack:
        if request.param == "server":
            tokens = {"auth_mode": "token", "auth_tokens": TOKEN, "triton_host": "127.0.0.1"}
            url = stack.enter_context(opened(settings, door_max_memory_bytes=MAX_MEMORY_BYTES, **tokens))
        else:
            flags = ["--auth-mode=token", f"--auth-tokens={TOKEN}", f"--door-max-memory-bytes={MAX_MEMORY_BYTES}"]
            flags.append("--gateway-configured-gpus=l4")
            root = tmp_path_factory.mktemp("cluster")
            url, _ = stack.enter_context(cluster_before(settings, [WARM, COLD, GONE], root, *flags))
        yield Place(request.param, url, served, interpreter)


@contextmanager
def full(place: Place) -> Iterator[None]:
    """Let a request that the endpoint does not answer hold most of the door's memory."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with ThreadPoolExecutor(1) as pool, silent(place.served):
        body = {"items": [ITEM]}
        pool.submit(httpx.post, f"{place.url}/v1/encode/{WARM}", json=body, headers=headers, timeout=120)
        wait_for(lambda: place.served.endpoint.at_once)
        yield


@contextmanager
def loading(place: Place) -> Iterator[None]:
    """Let the load of the model wait for the endpoint."""
    ask(place.served.settings, f"/v1/models/{triton_name(COLD)}/evict", "POST")
    with silent(place.served):
        yield


TROUBLES: dict[str, tuple[Callable[[Place], AbstractContextManager[None]], str, str, dict[str, str]]] = {
    "busy": (full, WARM, "QUEUE_FULL", {}),
    "loading": (loading, COLD, "MODEL_LOADING", {"X-Request-Timeout": "0.4"}),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_the_sdk_tries_again_and_succeeds(place, name):
    provoke, model, code, headers = TROUBLES[name]
    with place.client(**headers) as sdk, ExitStack() as trouble:
        trouble.enter_context(provoke(place))
        found = sdk.encode(model, ITEM, on_wait=trouble.close)
        assert len(found["dense"]) == 64
        waits = sdk.waits
        assert waits[0] == (code, 5.0)
        assert sdk.last_retry_count() == len(waits)


def test_a_server_that_restarts_costs_no_answer(place):
    """The SDK waits for one server; a queue keeps the request meanwhile."""
    launcher = psutil.Process(place.served.launcher.pid)

    def go_on() -> None:
        launcher.resume()
        wait_for(lambda: is_ready(place.url))

    launcher.suspend()
    try:
        (triton,) = part("triton", launcher)
        triton.kill()
        if place.name == "server":
            wait_for(lambda: not is_ready(place.url))
            with place.client() as sdk:
                found = sdk.encode(WARM, ITEM, on_wait=go_on)
                assert sdk.waits[0] == ("QUEUE_UNAVAILABLE", 2.0)
        else:
            launcher.resume()
            with place.client() as sdk:
                found = sdk.encode(WARM, ITEM)
    finally:
        go_on()
    assert len(found["dense"]) == 64


def test_the_sdk_gives_up_what_no_retry_helps(place):
    with place.client() as sdk:
        refused(sdk.encode, "no/such", {"text": "a"}, code="MODEL_NOT_FOUND")
        refused(sdk.get_model, "no/such", code="MODEL_NOT_FOUND")
        refused(sdk.encode, WARM, {"text": "a"}, output_types=["no"], code="INVALID_INPUT")
        refused(sdk.score, WARM, {"text": "a"}, [{"text": "b"}], options={"no_such": 1}, code="INVALID_INPUT")
        long = {"options": {"overflow_policy": "error"}, "kind": "InputTooLongError", "code": "INPUT_TOO_LONG"}
        refused(sdk.encode, WARM, {"text": "vines " * 2000}, **long)
        gone = refused(sdk.encode, GONE, {"text": "a"}, kind="ModelLoadFailedError", code="MODEL_LOAD_FAILED")
        assert gone.more == {"error_class": "NOT_FOUND", "permanent": True}
        if place.name == "cluster":
            refused(sdk.encode, WARM, {"text": "a"}, gpu="l4", wait_for_capacity=False, kind="ProvisioningError")


def test_calls_without_a_token_are_refused(place):
    with place.client("wrong") as sdk:
        for call in (
            sdk.list_models,
            lambda: sdk.encode(WARM, {"text": "a"}),
            lambda: sdk.score(WARM, {"text": "a"}, []),
        ):
            refused(call, code="UNAUTHORIZED")
        refused(sdk.watch)
        refused(sdk.create_pool, "eval", {"l4": 1}, kind="PoolError")
