"""Models of the hub, from an empty cache: small files when the server starts, weights with the first request."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer

from sie_triton import SIEClient
from sie_triton.cli.main import cli
from sie_triton.errors import BusyError, InputError, LoadError
from tests.server.test_serve import serving, sie
from tests.support.controller import wait_for
from tests.support.hub import Hub, running
from tests.support.loras import save_lora
from tests.support.models import save_bert

HELD = 1 << 20
OLD_S = 1_000_000_000


@pytest.fixture(scope="module")
def other_directory(tmp_path_factory, minilm_directory) -> Path:
    """A model with other weights than that of `tiny_directory`."""
    return save_bert(tmp_path_factory.mktemp("other"), minilm_directory, "electra")


@pytest.fixture(scope="module")
def hub(tmp_path_factory, tiny_directory, other_directory) -> Iterator[Hub]:
    with running() as hub, pytest.MonkeyPatch.context() as patch:
        home = str(tmp_path_factory.mktemp("hf"))
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": home, "HF_HUB_OFFLINE": "0"}.items():
            patch.setenv(name, value)
        hub.put("org/tiny", tiny_directory)
        hub.put("org/other", other_directory)
        files = {str(path.relative_to(tiny_directory)): path.read_bytes() for path in files_of(tiny_directory)}
        for name in ("loaded", "unused", "new"):
            hub.put(f"org/{name}", {**files, "name.json": name.encode()})
        hub.held_after = HELD
        yield hub


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def client(hub, data_dir, disk) -> Iterator[SIEClient]:
    """Client of a server with an empty cache, which is soon full."""
    flags = ["--load-timeout-s=5", "--allow-client-lora", "--max-loras-per-model=1", f"--local-cache={disk}"]
    flags.append("--disk-pressure-threshold-percent=0.000001")
    models = [f"org/{name}" for name in ("tiny", "other", "loaded", "new")]
    with serving(data_dir, *models, *flags) as (_, address), SIEClient(address) as client:
        yield client


def refusal(client):
    """Return why a request that may wait for 3 s is not answered; on a busy machine, the client may give up first."""
    with pytest.raises(BusyError) as told:
        client.encode("org/tiny", "hello", timeout=3)
    return str(told.value)


def test_a_hub_id_is_served_and_its_weights_come_with_the_first_request(hub, client, data_dir, tiny_directory):
    weights = (tiny_directory / "model.safetensors").read_bytes()
    digest = hashlib.sha256(weights).hexdigest()
    (commit,) = hub.repos["org/tiny"].values()
    hub.may_send.clear()
    assert digest not in hub.sent
    # What is there from now on is of another server.
    hub.put("org/tiny", {"config.json": b"{}"})
    wait_for(lambda: "while the model is being loaded: fetching org/tiny from the hub: 1 of" in refusal(client))
    wait_for(lambda: hub.sent[digest] >= HELD)
    hub.may_send.set()
    dense = client.encode("org/tiny", "hello", timeout=60)["dense"]
    log = (data_dir / "logs" / "tritonserver.log").read_text()
    np.testing.assert_allclose(dense, SentenceTransformer(str(tiny_directory)).encode("hello"), atol=1e-5)
    assert hub.sent[digest] == len(weights)
    assert {each.path.split("/")[4] for each in hub.asked if "org/tiny/resolve" in each.path} == {commit}
    assert 1 <= log.count("org__tiny: fetching org/tiny from the hub") <= 5


def test_a_request_may_name_a_hub_adapter_if_allowed(hub, client, tmp_path, other_directory):
    library = SentenceTransformer(str(other_directory), device="cpu")
    library[0].model = save_lora(tmp_path / "lora", library[0].model)
    (tmp_path / "lora" / "optimizer.safetensors").write_bytes(b"of the training")
    hub.put("org/lora", tmp_path / "lora")
    hub.put("org/secret", tmp_path / "lora")
    hub.gated.add("org/secret")
    hub.may_send.set()
    dense = client.encode("org/other", "hello", lora="org/lora", timeout=60)["dense"]
    for lora, reason in {"org/secret": "gated", "org/nothing": "not found"}.items():
        with pytest.raises(LoadError, match=f"the LoRA adapter {lora} is not loaded") as told:
            client.encode("org/other", "hello", lora=lora)
        assert told.value.reason == reason
    for path in (str(tmp_path / "lora"), "../lora"):
        with pytest.raises(InputError, match="parameter lora"):
            client.encode("org/other", "hello", lora=path)
    np.testing.assert_allclose(dense, library.encode("hello"), atol=1e-5)
    assert {each.path.rpartition("/")[2] for each in hub.asked if "org/lora/resolve" in each.path} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_a_full_disk_loses_what_no_server_has_loaded(hub, client, data_dir, disk, tmp_path):
    hub.may_send.set()
    flags = [f"--local-cache={disk}", f"--data-dir={tmp_path}"]
    warmed = sie("cache", "warm", *flags, "org/unused")
    assert warmed.wait(60) == 0, warmed.communicate()
    before = client.encode("org/loaded", "hello", timeout=120)["dense"]
    age(disk, "loaded", OLD_S)
    age(disk, "unused", OLD_S + 1)
    client.encode("org/new", "hello", timeout=120)
    assert not list((disk / "models--org--unused").rglob("*.safetensors"))
    assert list((disk / "models--org--loaded").rglob("*.safetensors"))
    refused = CliRunner().invoke(cli, ["cache", "rm", flags[0], "org/loaded"], catch_exceptions=False)
    assert refused.exit_code == 1
    assert "in use, not removed" in refused.output
    np.testing.assert_allclose(client.encode("org/loaded", "hello", timeout=120)["dense"], before, atol=1e-5)
    log = (data_dir / "logs" / "tritonserver.log").read_text()
    assert "the disk is full: removed org/unused@" in log
    assert "removed org/loaded@" not in log


def files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def age(disk: Path, name: str, seconds: float) -> None:
    for record in (disk / f"models--org--{name}").rglob("*.used"):
        os.utime(record, (seconds, seconds))
