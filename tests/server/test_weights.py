"""Stores of a running server: weights from a cluster cache without a hub, or removed from a full disk; model files."""

import os
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from huggingface_hub import constants
from sentence_transformers import SentenceTransformer

from sie_triton import SIEClient
from sie_triton.cli.main import cli
from sie_triton.models.weights.cluster import Cluster
from tests.conftest import tiny_model_file
from tests.server.test_serve import serving
from tests.support.controller import wait_for
from tests.support.hub import running
from tests.support.object_store import CREDENTIALS

OLD_S = 1_000_000_000


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Stand-in of the hub for this process and the server's; the local cache is a setting."""
    with running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", constants.HF_HUB_CACHE)
        monkeypatch.setenv("HF_HUB_CACHE", "")
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}.items():
            monkeypatch.setenv(name, value)
        yield hub


def test_model_files_of_a_store_are_served_and_followed(s3, tmp_path, tiny_directory):
    """The weights come from the cluster cache in the same store."""
    commit, weights = "c" * 40, tiny_directory / "model.safetensors"
    Cluster(s3.url).push("org/tiny", commit, tiny_directory, ["main"], lambda _: None)
    of_hub = tiny_model_file("test/first", tiny_directory).replace(f"weights_path: {tiny_directory}", "hf_id: org/tiny")
    s3.write("files/first.yaml", of_hub.encode())
    options = [f"--cluster-cache={s3.url}", f"--local-cache={tmp_path / 'disk'}", "--no-hf-fallback"]
    options += [f"--models-dir={s3.url}/files"]
    with serving(tmp_path / "data", *options) as (process, address), SIEClient(address) as client:
        assert client.list_models() == ["test/first"]
        dense = client.encode("test/first", "hello", timeout=120)["dense"]
        secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        assert secret not in (tmp_path / "data" / "serving.json").read_text()
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert not any(secret in argument for each in family for argument in each.cmdline())
        assert s3.sent < 2 * weights.stat().st_size
        s3.write("files/second.yaml", tiny_model_file("test/second", tiny_directory).encode())
        wait_for(lambda: client.list_models() == ["test/first", "test/second"])
        np.testing.assert_allclose(client.encode("test/second", "hello", timeout=120)["dense"], dense, atol=1e-5)
    np.testing.assert_allclose(dense, SentenceTransformer(str(tiny_directory)).encode("hello"), atol=1e-5)
    snapshot = tmp_path / "disk" / "models--org--tiny" / "snapshots" / commit
    assert (snapshot / "model.safetensors").read_bytes() == weights.read_bytes()


def test_a_full_disk_loses_what_no_server_has_loaded(hub, tmp_path, tiny_directory):
    files = {str(path.relative_to(tiny_directory)): path.read_bytes() for path in files_of(tiny_directory)}
    for name in ("loaded", "unused", "new"):
        hub.put(f"org/{name}", {**files, "name.json": name.encode()})
    disk = tmp_path / "disk"
    flags = [f"--local-cache={disk}", f"--data-dir={tmp_path / 'other'}"]
    warmed = CliRunner().invoke(cli, ["cache", "warm", *flags, "org/unused"], catch_exceptions=False)
    assert warmed.exit_code == 0, warmed.output
    options = [f"--local-cache={disk}", "--disk-pressure-threshold-percent=0.000001"]
    with serving(tmp_path / "data", "org/loaded", "org/new", *options) as (_, address), SIEClient(address) as client:
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
        log = (tmp_path / "data" / "logs" / "tritonserver.log").read_text()
    assert "the disk is full: removed org/unused@" in log
    assert "removed org/loaded@" not in log


def files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def age(disk: Path, name: str, seconds: float) -> None:
    for record in (disk / f"models--org--{name}").rglob("*.used"):
        os.utime(record, (seconds, seconds))
