"""Each variable of the reference's single server has an effect that shows on a running server.

One server has most of them at once. Of the others, the table names the test of a running server that shows the effect.
"""

import ast
import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from benchmarks.texts import texts
from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.errors import LoadError
from sie_triton.pipeline.scheduling.preprocess_slots import Slots
from sie_triton.pipeline.stages.preprocess import SLOTS_FILE
from sie_triton.records.status import RESIDENT
from sie_triton.system.host.file_locks import LockFile
from tests.support.controller import wait_for
from tests.support.pictures import picture
from tests.support.set_server import (
    APART,
    BURST,
    CLIP,
    COLD,
    DEBERTA,
    DENSE,
    FETCHED,
    FILTERED,
    MAX_OF_BATCH,
    MAX_OF_MODEL,
    MAX_REQUESTS,
    MISSING,
    NEW,
    NUM_IMAGE_WORKERS,
    NUM_WORKERS,
    OLD,
    PRELOADED,
    REMOTE,
    REMOTE_TOO,
    UNBUNDLED,
    Served,
    set_server,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path, minilm_directory: Path) -> Iterator[Served]:
    with set_server(tmp_path_factory.mktemp("settings"), tiny_directory, minilm_directory) as server:
        yield server


def models_come_from_models_dir_and_are_filtered(served: Served) -> None:
    names = {each["model"] for each in served.models()["models"]}
    assert {DENSE, APART, BURST} <= names
    assert FILTERED not in names


def the_models_of_the_bundle_are_served(served: Served) -> None:
    names = {each["model"] for each in served.models()["models"]}
    assert {DENSE, APART, BURST} <= names
    assert UNBUNDLED not in names
    answer = httpx.post(f"{served.door}/v1/encode/{UNBUNDLED}", json={"items": ["a"]}, timeout=60)
    assert answer.status_code == 404


def all_models_run_on_the_device(served: Served) -> None:
    assert runtime_of(served, DENSE)["device"] == "cpu"


def the_gpu_type_and_the_bundle_are_reported(served: Served) -> None:
    told = served.models()
    assert (told["gpu_type"], told["bundle"]) == ("l4", "nightly")
    health = httpx.get(f"{served.door}/health").json()
    assert (health["workers"][0]["gpu"], health["live_gpu_types"]) == ("l4", ["l4"])
    assert (health["workers"][0]["gpu_count"], health["cluster"]["gpu_count"]) == (2, 2)

    async def watch() -> Any:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{served.door}/ws/status") as socket:
            return await socket.receive_json(timeout=20)

    told = asyncio.run(watch())
    assert (told["machine_profile"], told["bundle"]) == ("l4", "nightly")


def the_preloaded_model_is_in_memory(served: Served) -> None:
    """No request names it."""
    assert served.record(PRELOADED)["state"] == RESIDENT


def weights_come_from_the_cluster_cache_into_the_local_one(served: Served) -> None:
    with SIEClient(served.grpc) as client:
        client.encode(FETCHED, "a")
    assert served.on_disk(NEW)


def a_full_disk_keeps_its_weights(served: Served) -> None:
    """A fetch would otherwise remove what was used longest ago."""
    weights_come_from_the_cluster_cache_into_the_local_one(served)
    assert served.on_disk(OLD)


def bulk_requests_wait_for_a_preprocessing_slot(served: Served) -> None:
    """The test holds as many slots as the server has: one more than a model may use."""
    with SIEClient(served.grpc) as client, ThreadPoolExecutor(1) as pool, ExitStack() as held:
        for _ in range(NUM_WORKERS):
            held.enter_context(slots(served).bulk())
        client.encode(DENSE, texts(200))
        held.enter_context(slots(served).bulk())
        waiting = pool.submit(client.encode, DENSE, texts(200), timeout=60)
        wait_for(lambda: served.record(DENSE, "preprocess")["num_open"] == 1)
        assert not waiting.done()
        held.close()
        waiting.result()


def images_wait_for_a_slot_of_their_own(served: Served) -> None:
    """The test holds as many slots of images as the server has: one more than a model may use."""
    image = {"image": picture(8, 8)}
    with SIEClient(served.grpc) as client, ThreadPoolExecutor(1) as pool:
        client.encode(CLIP, image)
        with slots(served).image(), slots(served).image():
            client.encode(CLIP, "a text")
            waiting = pool.submit(client.encode, CLIP, image, timeout=60)
            wait_for(lambda: served.record(CLIP, "preprocess")["num_open"] == 1)
            assert not waiting.done()
        waiting.result()


def slots(served: Served) -> Slots:
    return Slots(LockFile(served.root / "data/status" / SLOTS_FILE), NUM_WORKERS, NUM_IMAGE_WORKERS)


def nothing_is_downloaded(served: Served) -> None:
    with SIEClient(served.grpc) as client, pytest.raises(LoadError, match="SIE_HF_FALLBACK"):
        client.encode(MISSING, "a")


def a_pass_and_a_batch_hold_a_limited_number_of_requests(served: Served) -> None:
    """Requests that wait for the load would otherwise share one pass on each lane."""
    with ThreadPoolExecutor(MAX_OF_MODEL) as pool, SIEClient(served.grpc) as client:
        list(pool.map(lambda _: client.encode(BURST, "a"), range(MAX_OF_MODEL)))
    record = served.record(BURST)
    assert record["num_items"] == MAX_OF_MODEL
    assert record["num_sub_batches"] >= MAX_OF_MODEL // MAX_OF_BATCH
    with triton.InferenceServerClient(served.grpc) as client:
        config = client.get_model_config(f"{triton_name(BURST)}-inference", as_json=True)["config"]
    assert config["max_batch_size"] == MAX_OF_BATCH


def requests_that_arrive_apart_share_a_batch(served: Served) -> None:
    """The second is sent when preprocess has passed the first on. Without a wait the first would run alone."""
    with SIEClient(served.grpc) as client, ThreadPoolExecutor(2) as pool:
        client.encode(APART, "load")
        before = batches_of_two(served)
        for _ in range(20):
            passed_on = served.record(APART, "preprocess")["highest_ticket"]
            first = pool.submit(client.encode, APART, "first")
            wait_for(lambda known=passed_on: served.record(APART, "preprocess")["highest_ticket"] > known)
            client.encode(APART, "second")
            first.result()
            if batches_of_two(served) > before:
                return
    raise AssertionError("no two requests shared a batch")


def batches_of_two(served: Served) -> int:
    with triton.InferenceServerClient(served.grpc) as client:
        told = client.get_inference_statistics(f"{triton_name(APART)}-inference", as_json=True)
    by_size = {int(each["batch_size"]): each for each in told["model_stats"][0].get("batch_stats", [])}
    return int(by_size[2]["compute_infer"]["count"]) if 2 in by_size else 0


def too_many_requests_are_refused_at_once(served: Served) -> None:
    with SIEClient(served.grpc) as client:
        client.encode(REMOTE, "load")
        client.encode(REMOTE_TOO, "load")
    with kept_waiting(served) as ask:
        ask(REMOTE, MAX_OF_MODEL)
        assert refusal(served, REMOTE).startswith(f"{MAX_OF_MODEL} requests of this model are in progress")
        ask(REMOTE_TOO, MAX_REQUESTS - MAX_OF_MODEL)
        assert refusal(served, REMOTE_TOO).startswith(f"{MAX_REQUESTS} requests are in progress on this server")


@contextmanager
def kept_waiting(served: Served) -> Iterator[Callable[[str, int], None]]:
    """Give a function that sends requests, which the endpoint does not answer until the end of the context."""
    sent: list[Future[Any]] = []
    with ThreadPoolExecutor(MAX_REQUESTS) as pool, triton.InferenceServerClient(served.grpc) as client:

        def ask(model: str, count: int) -> None:
            """A request is sent again if it was refused because an earlier one still counted."""
            asked: list[Future[Any]] = []

            def are_open() -> bool:
                asked[:] = [each for each in asked if not each.done()]
                asked.extend(pool.submit(client.infer, triton_name(model), [text()]) for _ in range(count - len(asked)))
                return served.record(model)["num_open"] == count

            wait_for(are_open)
            sent.extend(asked)

        served.endpoint.delay_s = 120.0
        try:
            yield ask
        finally:
            served.endpoint.delay_s = 0.0
            served.endpoint.stop()
            served.endpoint.start()
            for each in sent:
                each.exception()


def text() -> Any:
    made = triton.InferInput("text", [1], "BYTES")
    made.set_data_from_numpy(np.array([b"hello"], object))
    return made


def refusal(served: Served, model: str) -> str:
    answer = httpx.post(f"{served.door}/v1/encode/{model}", json={"items": ["a"]}, timeout=60)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    message: str = answer.json()["detail"]["message"]
    return message


def a_model_without_the_attention_backend_is_refused_by_name(served: Served) -> None:
    refused = r"SIE_ATTENTION_BACKEND=sdpa cannot be used for DebertaV2Model"
    with SIEClient(served.grpc) as client, pytest.raises(LoadError, match=refused):
        client.encode(DEBERTA, "a")


def vectors_are_computed_in_the_precision(served: Served) -> None:
    with SIEClient(served.grpc) as client:
        found = client.encode(DENSE, "Roses climb the wall.")["dense"]
    error = np.abs(found - served.reference.encode("Roses climb the wall.")).max()
    assert 1e-5 < error < 0.05


def runtime_of(served: Served, model: str) -> dict[str, Any]:
    with triton.InferenceServerClient(served.grpc) as client:
        config = client.get_model_config(f"{triton_name(model)}-inference", as_json=True)["config"]
    found: dict[str, Any] = json.loads(config["parameters"]["sie_spec"]["string_value"])["runtime"]
    return found


def passes_are_written_down_and_shown(served: Served) -> None:
    with ThreadPoolExecutor(1) as pool, SIEClient(served.grpc) as client:
        command = [*TOP, f"--data-dir={served.root / 'data'}"]
        table = pool.submit(subprocess.run, command, capture_output=True, text=True)
        while not table.done():
            client.encode(DENSE, "Roses climb the wall.")
    shown = table.result()
    assert shown.returncode == 0, shown.stderr
    (row,) = [line.split("│")[1:-1] for line in shown.stdout.splitlines() if DENSE in line]
    assert [float(row[column]) for column in (3, 4)] == [1, 1]  # items and requests of a pass
    assert float(row[1]) > 0


def logs_are_json(served: Served) -> None:
    with SIEClient(served.grpc) as client:
        client.encode(DENSE, "Roses climb the wall.")
    wait_for(lambda: any(line.get("model") == DENSE and line.get("verb") == "encode" for line in served.lines))


TOP = [sys.executable, "-m", "sie_triton.cli", "top", "--once", "--seconds=2"]

# Each variable of the reference's tables: core, cache, batching, memory, logging, advanced and LoRA settings of one
# server.
TABLE: dict[str, Callable[[Served], None] | str] = {
    "SIE_DEVICE": all_models_run_on_the_device,
    "SIE_MODELS_DIR": models_come_from_models_dir_and_are_filtered,
    "SIE_MODEL_FILTER": models_come_from_models_dir_and_are_filtered,
    "SIE_GPU_TYPE": the_gpu_type_and_the_bundle_are_reported,
    "SIE_GPU_COUNT": the_gpu_type_and_the_bundle_are_reported,
    "SIE_BUNDLE": the_models_of_the_bundle_are_served,
    "SIE_LOCAL_CACHE": weights_come_from_the_cluster_cache_into_the_local_one,
    "SIE_CLUSTER_CACHE": weights_come_from_the_cluster_cache_into_the_local_one,
    "SIE_HF_FALLBACK": nothing_is_downloaded,
    "SIE_MAX_BATCH_REQUESTS": a_pass_and_a_batch_hold_a_limited_number_of_requests,
    "SIE_MAX_BATCH_WAIT_MS": requests_that_arrive_apart_share_a_batch,
    "SIE_MAX_CONCURRENT_REQUESTS": too_many_requests_are_refused_at_once,
    "SIE_MEMORY_PRESSURE_THRESHOLD_PERCENT": (
        "tests/residency/test_small_limit.py::test_alternating_requests_respect_a_memory_limit_for_three_models"
    ),
    "SIE_DISK_CACHE_ENABLED": a_full_disk_keeps_its_weights,
    "SIE_DISK_PRESSURE_THRESHOLD_PERCENT": (
        "tests/server/test_hub.py::test_a_full_disk_loses_what_no_server_has_loaded"
    ),
    "SIE_IDLE_EVICT_S": "tests/server/metrics/test_metrics.py::test_an_idle_model_is_evicted",
    "SIE_PRELOAD_MODELS": the_preloaded_model_is_in_memory,
    "SIE_PREPROCESSOR_WORKERS": bulk_requests_wait_for_a_preprocessing_slot,
    "SIE_IMAGE_WORKERS": images_wait_for_a_slot_of_their_own,
    "SIE_ATTENTION_BACKEND": a_model_without_the_attention_backend_is_refused_by_name,
    "SIE_DEFAULT_COMPUTE_PRECISION": vectors_are_computed_in_the_precision,
    "SIE_INSTRUMENTATION": passes_are_written_down_and_shown,
    "SIE_LOG_JSON": logs_are_json,
    "SIE_TRACING_ENABLED": (
        "tests/server/metrics/test_telemetry.py::test_a_recorded_request_has_its_whole_trace_and_its_log_lines"
    ),
    "SIE_MAX_LORAS_PER_MODEL": "tests/server/test_lora.py::test_the_most_recently_used_adapters_stay",
}


@pytest.mark.parametrize("variable", TABLE)
def test_a_variable_of_the_reference_has_an_effect_on_a_running_server(variable, request):
    shown = TABLE[variable]
    if callable(shown):
        shown(request.getfixturevalue("served"))
        return
    path, _, function = shown.partition("::")
    functions = {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert function in functions


def test_a_full_server_is_retried(served):
    before = served.record(DENSE, "preprocess")["num_refused"]
    num_clients = 3 * MAX_OF_MODEL
    with SIEClient(served.grpc, timeout=60) as client, ThreadPoolExecutor(num_clients) as pool:
        results = list(pool.map(lambda i: client.encode(DENSE, texts(40, seed=i)), range(num_clients)))
    assert {len(result) for result in results} == {40}
    assert served.record(DENSE, "preprocess")["num_refused"] > before


def test_the_wait_for_a_load_is_reported_apart_from_the_queue(served):
    with httpx.Client(base_url=served.door, timeout=60) as client:
        first, second = (client.post(f"/v1/encode/{COLD}", json={"items": ["a"]}) for _ in range(2))
    timing = first.json()["timing"]
    assert timing["total_ms"] > timing["loading_ms"] > 0
    assert float(first.headers["X-Loading-Time"]) > 0
    assert second.json()["timing"]["loading_ms"] == 0
