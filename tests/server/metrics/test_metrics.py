"""One address has the metrics of the whole server: what requests took, by model and verb, and errors by kind."""

import re
from urllib.parse import quote

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.errors import InputError
from tests.support.controller import wait_for
from tests.support.counted_server import ENCODER, RERANKER, TOKEN


def test_metrics_need_the_token(served):
    assert httpx.get(f"{served.http.base_url}/metrics").status_code == 401


def test_every_family_stands_once_and_every_part_is_there(served):
    served.encode("a")
    names = [family.name for family in served.families()]
    assert len(names) == len({*names})
    assert {"nv_inference_request_success", "sie_memory_used_bytes", "sie_door_request_duration_seconds"} <= {*names}
    assert [served.figure("sie_up", part=part) for part in ("controller", "triton")] == [1, 1]


def test_a_request_is_counted_by_model_and_verb_with_its_items_and_tokens(served):
    served.encode("warm up")
    of_encoder = {"model": ENCODER, "verb": "encode"}
    names = ("request_duration_seconds_count", "request_queue_seconds_count", "request_items_sum", "request_tokens_sum")
    wait_for(lambda: served.figure("sie_request_items_sum", **of_encoder) > 0)
    before = [served.figure(f"sie_{name}", **of_encoder) for name in names]
    passes = served.figure("sie_batch_items_sum", model=ENCODER)
    served.encode("a", "b c")
    expected = [1, 1, 2, 3 + 4]  # with [CLS] and [SEP]
    after = [a + b for a, b in zip(before, expected, strict=True)]
    # A request is counted when it has been answered.
    wait_for(lambda: [served.figure(f"sie_{name}", **of_encoder) for name in names] == after)
    wait_for(lambda: served.figure("sie_batch_items_sum", model=ENCODER) == passes + 2)
    scored = served.figure("sie_request_items_sum", model=RERANKER, verb="score")
    with SIEClient(f"grpc://127.0.0.1:{served.ports[1]}") as client:
        client.score(RERANKER, "q", ["a", "b", "c"])
    wait_for(lambda: served.figure("sie_request_items_sum", model=RERANKER, verb="score") == scored + 3)
    assert served.figure("sie_request_items_sum", model=RERANKER, verb="encode") == 0


def test_counters_survive_an_eviction(served):
    served.encode("a")
    wait_for(lambda: served.figure("sie_request_duration_seconds_count", model=ENCODER) > 0)
    counted = served.figure("sie_request_duration_seconds_count", model=ENCODER)
    passes = served.figure("sie_batch_cost_count", model=ENCODER)
    accepted = served.figure("sie_requests_accepted_total", model=ENCODER, stage="preprocess")
    computed = served.figure("sie_items_computed_total", model=ENCODER, stage="inference")
    evictions = served.figure("sie_swaps_total", model=ENCODER, reason="evict: asked for")
    served.evict(ENCODER)
    wait_for(lambda: served.figure("sie_model_state", model=ENCODER, state="cold") == 1)
    served.encode("a")
    assert served.figure("sie_swaps_total", model=ENCODER, reason="evict: asked for") == evictions + 1
    wait_for(lambda: served.figure("sie_request_duration_seconds_count", model=ENCODER) == counted + 1)
    wait_for(lambda: served.figure("sie_batch_cost_count", model=ENCODER) == passes + 1)
    assert served.figure("sie_requests_accepted_total", model=ENCODER, stage="preprocess") == accepted + 1
    assert served.figure("sie_items_computed_total", model=ENCODER, stage="inference") == computed + 1


def test_errors_are_counted_by_kind_in_triton_and_by_status_at_the_door(served):
    served.encode("a")
    wrong = {"items": [{"text": "a"}], "params": {"options": {"dimensions": 0}}}
    route = "/v1/encode/{model:path}"
    errors = served.figure("sie_request_errors_total", model=ENCODER, kind="input")
    at_the_door = served.figure("sie_door_request_duration_seconds_count", route=route, status="400")
    assert served.http.post(f"/v1/encode/{ENCODER}", json=wrong).status_code == 400
    with SIEClient(f"grpc://127.0.0.1:{served.ports[1]}") as client, pytest.raises(InputError):
        client.encode(ENCODER, "a", options={"dimensions": 0})
    wait_for(lambda: served.figure("sie_request_errors_total", model=ENCODER, kind="input") == errors + 2)
    now = served.figure("sie_door_request_duration_seconds_count", route=route, status="400")
    assert now == at_the_door + 1  # of whichever door process


def test_no_client_can_add_labels(served):
    """Neither a path nor a name of a model or a parameter becomes one."""

    def series() -> int:
        return sum(len(family.samples) for family in served.families() if family.name.startswith("sie_"))

    def ask(number: int) -> None:
        name = quote(f'evil{number}/x"}}\n{{')
        served.http.post(f"/v1/encode/{name}", json={"items": [{"text": "a"}]})
        served.http.get(f"/nowhere/{name}")
        served.http.get(f"/v1/models/{name}")
        params = {"options": {f'evil{number}"}}\n': 1}}
        served.http.post(f"/v1/encode/{ENCODER}", json={"items": [{"text": "a"}], "params": params})
        client = triton.InferenceServerClient(f"127.0.0.1:{served.ports[1]}")
        with client, pytest.raises(InferenceServerException):
            client.infer(triton_name(f"evil/{number}"), [], headers={"x-request-id": name})

    served.encode("a")
    ask(0)
    served.evict(ENCODER)  # afterwards its counts are those of ended processes
    served.encode("a")
    wait_for(lambda: served.figure("sie_request_errors_total", model=ENCODER, kind="input") > 0)
    before = series()
    for number in range(1, 30):
        ask(number)
    assert series() == before
    assert "evil" not in served.http.get("/metrics").text


def test_a_gateway_counts_calls_over_grpc_beside_requests_over_http(cluster):
    def counted(route: str) -> float:
        return cluster.figure("sie_door_request_duration_seconds_count", route=route, status="200")

    routes = "/inference.GRPCInferenceService/ModelInfer", "/v1/encode/{model:path}"
    before = [*map(counted, routes)]
    with SIEClient(cluster.grpc, token=TOKEN, controller_url="") as client:
        for _ in range(5):
            client.encode(ENCODER, "a")
    cluster.encode("a")
    wait_for(lambda: [*map(counted, routes)] == [before[0] + 5, before[1] + 1])


def test_an_idle_model_is_evicted(cluster):
    *_, sidecar = cluster.targets
    evictions = re.compile(rf'^sie_swaps_total{{.*model="{ENCODER}".*reason="evict: idle".*}} [1-9]', re.MULTILINE)

    def is_evicted() -> bool:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return evictions.search(httpx.get(f"http://{sidecar}/metrics", headers=headers).text) is not None

    cluster.encode("a")
    wait_for(is_evicted)
    cluster.encode("a")
