"""Environment variables of one server, and what each changes on it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from sentence_transformers import SentenceTransformer

from sie_triton.names import triton_name
from sie_triton.records.status import COLD, RESIDENT, records_of
from tests.conftest import tiny_model_file
from tests.server.test_known_models import Ports, default_server
from tests.support.controller import wait_for

PRELOADED, OTHER, FILTERED = "test/preloaded", "test/other", "left/out"
TEXT = "Ada Lovelace lived in London."

VARIABLES = {
    "SIE_MODEL_FILTER": "test/*",
    "SIE_PRELOAD_MODELS": PRELOADED,
    "SIE_GPU_TYPE": "l4",
    "SIE_BUNDLE": "mine",
    "SIE_DEVICE": "cpu",
    "SIE_DEFAULT_COMPUTE_PRECISION": "bfloat16",
    # With a wait that no test would outlast, a batch is formed only once it is full.
    "SIE_MAX_BATCH_REQUESTS": "2",
    "SIE_MAX_BATCH_WAIT_MS": "10000",
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("settings") / "data"


@pytest.fixture(scope="module")
def server(data_dir, tiny_directory) -> Iterator[Ports]:
    models = data_dir.with_name("models")
    models.mkdir()
    for name in (PRELOADED, OTHER, FILTERED):
        (models / f"{triton_name(name)}.yaml").write_text(tiny_model_file(name, tiny_directory))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (VARIABLES | {"SIE_MODELS_DIR": str(models)}).items():
            patch.setenv(name, value)
        with default_server(data_dir) as running:
            yield running


def state(data_dir: Path, model: str) -> int:
    (record,) = records_of(data_dir / "status", triton_name(model), "inference")
    return int(record["state"])


def test_models_to_preload_are_in_memory_at_the_start(server, data_dir):
    assert state(data_dir, PRELOADED) == RESIDENT
    assert state(data_dir, OTHER) == COLD


def both(server: Ports, model: str = OTHER) -> list[np.ndarray]:
    """Send two requests at once: they fill a batch."""
    with server.client() as client, ThreadPoolExecutor(2) as pool:
        return [each["dense"] for each in pool.map(lambda text: client.encode(model, text), [TEXT, TEXT])]


def test_models_of_the_directory_that_match_the_filter_are_served(server):
    with server.client() as client:
        assert client.list_models() == [OTHER, PRELOADED]
    assert server.post(f"encode/{FILTERED}", items=[{"text": TEXT}]).status_code == 404
    assert server.post("encode/BAAI/bge-m3", items=[{"text": TEXT}]).status_code == 404


def test_the_status_names_the_type_of_gpu_and_the_bundle(server):
    health = httpx.get(f"http://127.0.0.1:{server.door}/health").json()
    assert (health["workers"][0]["gpu"], health["live_gpu_types"]) == ("l4", ["l4"])
    told = httpx.get(f"http://127.0.0.1:{server.controller}/v1/models").json()
    assert (told["gpu_type"], told["bundle"], told["device"]) == ("l4", "mine", "cpu")


def test_the_precision_of_the_forward_pass_is_the_given_one(server, tiny_directory):
    exact = SentenceTransformer(str(tiny_directory)).encode(TEXT)
    dense = both(server)[0]
    assert 1e-5 < abs(dense - exact).max() < 0.05


def test_a_batch_waits_for_its_requests_and_takes_no_more_than_allowed(server):
    both(server)
    before = batches(server)
    with server.client() as client, ThreadPoolExecutor(4) as pool:
        first = pool.submit(client.encode, OTHER, TEXT)
        wait_for(lambda: pending(server) == 1)  # without the wait it would be computed now
        assert batches(server) == before
        rest = [pool.submit(client.encode, OTHER, TEXT) for _ in range(3)]
        for each in (first, *rest):
            each.result()
    after = batches(server)
    assert {size: after[size] - before.get(size, 0) for size in after} == {2: 2}


def batches(server: Ports) -> dict[int, int]:
    """Return how many batches of each number of requests Triton has sent to inference."""
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        told = client.get_inference_statistics(f"{triton_name(OTHER)}-inference", as_json=True)["model_stats"][0]
    return {int(each["batch_size"]): int(each["compute_infer"]["count"]) for each in told.get("batch_stats", ())}


def pending(server: Ports) -> int:
    """Return how many requests wait in Triton's queue before inference."""
    text = httpx.get(f"http://127.0.0.1:{server.metrics}/metrics").text
    line = f'nv_inference_pending_request_count{{model="{triton_name(OTHER)}-inference",version="1"}} '
    return int(next((each.removeprefix(line) for each in text.splitlines() if each.startswith(line)), 0))


def test_mps_is_refused_with_the_alternative(tmp_path):
    from tests.server.test_serve import sie

    process = sie("serve", f"--data-dir={tmp_path}", SIE_DEVICE="mps")
    _, text = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "SIE_DEVICE=mps: mps cannot be used: Triton has no macOS build; use auto, cpu, cuda or cuda:N" in text
