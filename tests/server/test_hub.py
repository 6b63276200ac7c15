"""A model of the hub, from an empty cache: small files when the server starts, weights with the first request."""

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from sie_triton import SIEClient
from sie_triton.errors import BusyError, InputError, LoadError
from tests.server.test_serve import serving
from tests.support.controller import wait_for
from tests.support.hub import Hub, running
from tests.support.loras import save_lora

HELD = 1 << 20


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    with running() as hub:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}.items():
            monkeypatch.setenv(name, value)
        yield hub


def refusal(client):
    """Return why a request that may wait for 3 s is not answered; on a busy machine, the client may give up first."""
    with pytest.raises(BusyError) as told:
        client.encode("org/tiny", "hello", timeout=3)
    return str(told.value)


def test_a_hub_id_is_served_and_its_weights_come_with_the_first_request(hub, tmp_path, tiny_directory):
    weights = (tiny_directory / "model.safetensors").read_bytes()
    digest = hashlib.sha256(weights).hexdigest()
    commit = hub.put("org/tiny", tiny_directory)
    hub.held_after = HELD
    with serving(tmp_path / "data", "org/tiny", "--load-timeout-s=5") as (_, address), SIEClient(address) as client:
        assert digest not in hub.sent
        # What is there from now on is of another server.
        hub.put("org/tiny", {"config.json": b"{}"})
        wait_for(lambda: "while the model is being loaded: fetching org/tiny from the hub: 1 of" in refusal(client))
        wait_for(lambda: hub.sent[digest] >= HELD)
        hub.may_send.set()
        dense = client.encode("org/tiny", "hello", timeout=60)["dense"]
        log = (tmp_path / "data" / "logs" / "tritonserver.log").read_text()
    np.testing.assert_allclose(dense, SentenceTransformer(str(tiny_directory)).encode("hello"), atol=1e-5)
    assert hub.sent[digest] == len(weights)
    assert {each.path.split("/")[4] for each in hub.asked if "/resolve/" in each.path} == {commit}
    assert 1 <= log.count("org__tiny: fetching org/tiny from the hub") <= 5


def test_a_request_may_name_a_hub_adapter_if_allowed(hub, tmp_path, tiny_directory):
    library = SentenceTransformer(str(tiny_directory), device="cpu")
    library[0].model = save_lora(tmp_path / "lora", library[0].model)
    hub.put("org/tiny", tiny_directory)
    (tmp_path / "lora" / "optimizer.safetensors").write_bytes(b"of the training")
    hub.put("org/lora", tmp_path / "lora")
    hub.put("org/secret", tmp_path / "lora")
    hub.gated.add("org/secret")
    flags = ["--allow-client-lora", "--max-loras-per-model=1"]
    with serving(tmp_path / "data", "org/tiny", *flags) as (_, address), SIEClient(address) as client:
        dense = client.encode("org/tiny", "hello", lora="org/lora", timeout=60)["dense"]
        for lora, reason in {"org/secret": "gated", "org/nothing": "not found"}.items():
            with pytest.raises(LoadError, match=f"the LoRA adapter {lora} is not loaded") as told:
                client.encode("org/tiny", "hello", lora=lora)
            assert told.value.reason == reason
        for path in (str(tmp_path / "lora"), "../lora"):
            with pytest.raises(InputError, match="parameter lora"):
                client.encode("org/tiny", "hello", lora=path)
    np.testing.assert_allclose(dense, library.encode("hello"), atol=1e-5)
    assert {each.path.rpartition("/")[2] for each in hub.asked if "org/lora/resolve" in each.path} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
