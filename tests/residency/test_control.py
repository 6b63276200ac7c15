"""Operators' view and commands: load, evict, limits, failures, status, metrics."""

import re
import shutil
import time
import urllib.error
import urllib.request

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import act, show
from sie_triton.errors import LoadError, ServerError
from tests.residency.conftest import ADMIN_TOKEN, MODELS, TEXT, busy, serving, wait_for


@pytest.mark.parametrize("action", ["load", "evict"])
def test_load_and_eviction_require_the_admin_token(crowd, action):
    url = f"{crowd.url}/v1/models/{triton_name(MODELS[0])}/{action}"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, method="POST", headers=headers))
        assert caught.value.code == 401
    with pytest.raises(ServerError, match="test/nope is not served; served models: test/model-0"):
        crowd.act("test/nope", action)


def test_load_puts_a_model_into_memory_before_its_first_request(crowd, vector):
    crowd.act(MODELS[7], "evict")
    wait_for(lambda: crowd.state(MODELS[7]) == "cold")
    crowd.act(MODELS[7], "load")
    wait_for(lambda: crowd.state(MODELS[7]) == "resident")
    with SIEClient(crowd.grpc) as client:
        started = time.monotonic()
        assert float(client.encode(MODELS[7], TEXT)["dense"] @ vector) > 0.9999
        assert time.monotonic() - started < 3


def test_clients_cannot_reach_tritons_model_control(crowd):
    with triton.InferenceServerClient(crowd.grpc) as client:
        for call in (
            lambda: client.load_model(triton_name(MODELS[0])),
            lambda: client.unload_model(triton_name(MODELS[0])),
            client.get_model_repository_index,
            lambda: client.update_trace_settings(settings={}),
        ):
            with pytest.raises(InferenceServerException, match="restricted"):
                call()
    url = f"http://127.0.0.1:{crowd.settings.http_port}/v2/repository/models/{triton_name(MODELS[0])}/unload"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b"{}"))
    assert caught.value.code == 403


def test_the_command_line_shows_and_evicts(crowd, tmp_path, capsys):
    where = crowd.settings.model_copy(update={"admin_token": ADMIN_TOKEN})
    with SIEClient(crowd.grpc) as client:
        client.encode(MODELS[5], TEXT)
    wait_for(lambda: crowd.state(MODELS[5]) == "resident")
    show(where, watch=False, picture=tmp_path / "status.svg")
    act(where, MODELS[5], "evict")
    text = capsys.readouterr().out
    assert re.search(r"test/model-5 +│ resident +│ torch +│ +0\.\d\d GiB", text)
    assert "test/model-5: evict done" in text
    assert "resident" in (tmp_path / "status.svg").read_text()


def test_metrics_of_the_controller(crowd, vector):
    crowd.act(MODELS[7], "load")
    wait_for(lambda: crowd.state(MODELS[7]) == "resident")
    with urllib.request.urlopen(f"{crowd.url}/metrics") as response:
        page = response.read().decode()
    limit = value(page, 'sie_memory_limit_bytes{source="SIE_MEMORY_LIMIT_BYTES"}')
    assert limit == crowd.settings.memory_limit_bytes
    assert 'sie_model_state{model="test/model-0",state="resident"}' in page
    assert "sie_swaps_total{" in page
    assert 0 < value(page, "sie_memory_pressure_ratio") < 2
    assert value(page, 'sie_model_loads_total{model="test/model-7"}') >= 1
    assert value(page, 'sie_model_load_seconds{model="test/model-7",phase="weights"}') > 0
    # its worker was forked by a process that had imported everything
    assert value(page, 'sie_model_load_seconds{model="test/model-7",phase="imports"}') < 0.5


def value(page: str, name: str) -> float:
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found)


def test_a_model_that_never_fits_reports_that_it_does_not_fit(tmp_path, tiny_directory):
    model = "test/small"
    with (
        serving(tmp_path, {model: tiny_directory}, 64, memory_limit_bytes=230_000_000) as crowd,
        SIEClient(crowd.grpc) as client,
    ):
        for _ in range(2):
            with pytest.raises(LoadError, match=r"need about 0\.\d+ GiB, but .* only 0\.\d+ GiB are free") as caught:
                client.encode(model, TEXT, timeout=30)
            assert caught.value.reason == "too large"
            wait_for(lambda: crowd.models()[model]["failure"] == "too large")


def test_load_failures_are_classified_cached_and_isolated(tmp_path, tiny_directory):
    good, corrupt, missing = "test/good", "test/corrupt", "test/missing"
    directories = {name: tmp_path / triton_name(name) for name in (good, corrupt, missing)}
    for directory in directories.values():
        shutil.copytree(tiny_directory, directory)
    weights = directories[corrupt] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:10_000])
    (tmp_path / "models").mkdir()
    with serving(tmp_path / "models", directories, 64) as crowd, SIEClient(crowd.grpc) as client:
        shutil.rmtree(directories[missing])
        expected = client.encode(good, TEXT)["dense"]
        with busy(crowd, good, expected, clients=1) as log:
            for model, reason in ((corrupt, "corrupt"), (missing, "not found")):
                for _ in range(20):
                    with pytest.raises(
                        LoadError, match=f"the model is not loaded .*sie-triton load {triton_name(model)}"
                    ) as caught:
                        client.encode(model, TEXT)
                    assert caught.value.reason == reason
                    assert caught.value.is_permanent
                wait_for(lambda model=model: crowd.state(model) == "failed")
                assert crowd.models()[model]["failure"] == reason
                # one attempt, twenty answers
                assert crowd.server.log_path.read_text().count(f"is not loaded ({reason})") == 1
            with pytest.raises(ServerError, match="corrupt: could not be loaded"):
                crowd.act(corrupt, "load")
            shutil.copy(tiny_directory / "model.safetensors", weights)
            shutil.copytree(tiny_directory, directories[missing])
            for model in (corrupt, missing):
                crowd.act(model, "load")
                assert float(client.encode(model, TEXT)["dense"] @ expected) > 0.9999
        log.check()


def test_an_idle_model_is_evicted_and_a_busy_one_is_not(tmp_path, tiny_directory):
    idle, used = MODELS[2:4]
    with serving(tmp_path, dict.fromkeys((idle, used), tiny_directory), 64, idle_evict_s=3) as crowd:
        with SIEClient(crowd.grpc) as client:
            vector = client.encode(idle, TEXT)["dense"]
        with busy(crowd, used, vector, clients=1) as log:
            wait_for(lambda: crowd.state(used) == "resident")
            worker = crowd.models()[used]["worker_pid"]
            wait_for(lambda: crowd.state(idle) == "cold")
            time.sleep(4)
            assert crowd.models()[used]["worker_pid"] == worker
    log.check()
