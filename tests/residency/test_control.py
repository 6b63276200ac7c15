"""Operators' view and commands: load, evict, limits, failures, status, metrics."""

import re
import shutil
import urllib.error
import urllib.request

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import act, show
from sie_triton.errors import LoadError, ServerError
from tests.residency.conftest import (
    ADMIN_TOKEN,
    CORRUPT,
    MISSING,
    MODELS,
    OWN_DIRECTORIES,
    TEXT,
    busy,
    wait_for,
)


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
    crowd.act(MODELS[7], "evict")
    wait_for(lambda: crowd.state(MODELS[7]) == "cold")
    crowd.act(MODELS[7], "load")
    wait_for(lambda: value(metrics_of(crowd), 'sie_model_loads_total{model="test/model-7"}') >= 1)
    page = metrics_of(crowd)
    limit = value(page, 'sie_memory_limit_bytes{device="cpu",source="SIE_MEMORY_LIMIT_BYTES"}')
    assert limit == crowd.settings.memory_limit_bytes
    assert 'sie_model_state{model="test/model-0",state="resident"}' in page
    assert "sie_swaps_total{" in page
    assert 0 < value(page, 'sie_memory_pressure_ratio{device="cpu",source="SIE_MEMORY_LIMIT_BYTES"}') < 2
    assert value(page, 'sie_model_load_seconds{model="test/model-7",phase="weights"}') > 0
    # its worker was forked by a process that had imported everything
    assert value(page, 'sie_model_load_seconds{model="test/model-7",phase="imports"}') < 0.5


def metrics_of(crowd) -> str:
    with urllib.request.urlopen(f"{crowd.url}/metrics") as response:
        return response.read().decode()


def value(page: str, name: str) -> float:
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found)


def test_an_unloaded_model_is_gone_until_it_is_loaded(crowd, vector):
    """A step that was swapped by an eviction is loaded by its own name: it goes too."""
    model = MODELS[6]
    crowd.act(model, "evict")
    crowd.act(model, "unload")
    wait_for(lambda: model not in crowd.models())
    with SIEClient(crowd.grpc) as client:
        assert model not in client.list_models()
        with pytest.raises(ServerError, match="is not served"):
            crowd.act(model, "evict")
        crowd.act(model, "load")
        wait_for(lambda: crowd.state(model) == "resident")
        assert float(client.encode(model, TEXT)["dense"] @ vector) > 0.9999


def test_load_failures_are_classified_cached_and_isolated(crowd, vector, wide_directory):
    corrupt, missing = (crowd.settings.models_dir / triton_name(model) for model in (CORRUPT, MISSING))
    weights = corrupt / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:10_000])
    shutil.rmtree(missing)
    with SIEClient(crowd.grpc) as client, busy(crowd, MODELS[0], vector, clients=1) as log:
        for model, reason in ((CORRUPT, "corrupt"), (MISSING, "not found")):
            for _ in range(20):
                with pytest.raises(LoadError, match="the model is not loaded") as caught:
                    client.encode(model, TEXT)
                assert (caught.value.reason, caught.value.is_permanent) == (reason, True)
            wait_for(lambda model=model: crowd.state(model) == "failed")
            assert crowd.models()[model]["failure"] == reason
            # one attempt, twenty answers
            assert crowd.server.log.path.read_text().count(f"is not loaded ({reason})") == 1
        with pytest.raises(ServerError, match="corrupt: could not be loaded"):
            crowd.act(CORRUPT, "load")
        shutil.copy(wide_directory / "model.safetensors", weights)
        shutil.copytree(wide_directory, missing)
        for model in OWN_DIRECTORIES:
            crowd.act(model, "load")
            assert float(client.encode(model, TEXT)["dense"] @ vector) > 0.9999
    log.check()
