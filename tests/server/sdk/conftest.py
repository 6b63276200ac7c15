"""SIE's SDK in an environment of its own, and a server of remote models, whose endpoint makes trouble when told to."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.records.status import records_of
from sie_triton.settings import Settings
from tests.conftest import fresh_settings, model_file
from tests.server.conftest import opened
from tests.server.test_serve import port_flags, started
from tests.support.models import save_bert, without_weights
from tests.support.openai_endpoint import Endpoint, last_states
from tests.support.sdk import python

PACKAGE = "sie-sdk==0.10.1"
WARM, COLD, GONE = "test/warm", "test/cold", "test/gone"
DENSE, CHAT = "test/far", "test/far-chat"
KEY = "TEST_FAR_KEY"


@dataclass(frozen=True)
class Provoked:
    """A server of remote models. DENSE has the weights of `decoder`, which the endpoint computes with."""

    settings: Settings
    endpoint: Endpoint
    door: str
    launcher: subprocess.Popen[str]
    decoder: Path

    def address(self, protocol: str) -> str:
        return f"127.0.0.1:{getattr(self.settings, f'{protocol}_port')}"

    def client(self, timeout: float | None = None) -> SIEClient:
        return SIEClient(f"grpc://{self.address('grpc')}", timeout=timeout)

    def record(self, model: str) -> dict[str, int]:
        records = records_of(self.settings.status_dir, triton_name(model), "inference")
        return dict(max(records, key=lambda record: record["generation"]))

    def model(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in ask(self.settings, "/v1/models")["models"] if each["model"] == name]
        return found


@pytest.fixture(scope="package")
def interpreter(tmp_path_factory) -> Path:
    """The interpreter of an environment that has the SDK."""
    base = python()
    if base is None:
        pytest.skip("no Python 3.12 or later with venv on PATH, nor in SIE_SDK_PYTHON: sie-sdk cannot be installed")
    directory = tmp_path_factory.mktemp("sdk")
    subprocess.run([base, "-m", "venv", directory], check=True)
    pip = [directory / "bin" / "pip", "install", "-q", "--only-binary", ":all:", "--no-compile", PACKAGE]
    if subprocess.run(pip, stdout=sys.stderr).returncode:
        pytest.skip(f"pip cannot install {PACKAGE}")
    return directory / "bin" / "python"


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Iterator[Provoked]:
    """A server of remote models, with a door."""
    root = tmp_path_factory.mktemp("kinds")
    decoder = save_bert(root / "decoder", minilm_directory, "qwen3", pooling="lasttoken")
    small = without_weights(decoder, root / "small")
    (root / "models").mkdir()
    settings = fresh_settings(root)
    dense, key = {"encode": {"dense": {"dim": 64, "scales": True}}}, {"api_key_env": KEY}
    with Endpoint(last_states(decoder)) as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, "secret")
        files = {
            **{name: endpoint.model_file(name, small, "sentence_transformer", dense) for name in (WARM, COLD)},
            GONE: model_file(GONE, root / "nothing", "sentence_transformer", dense),
            DENSE: endpoint.model_file(DENSE, small, "sentence_transformer", dense, **key),
            CHAT: endpoint.chat_file(CHAT, **key),
        }
        for name, content in files.items():
            (root / "models" / f"{triton_name(name)}.yaml").write_text(content)
        flags = [f"--models-dir={root / 'models'}", f"--data-dir={settings.data_dir}", "--device=cpu"]
        ports = [settings.http_port, settings.grpc_port, settings.metrics_port, settings.controller_port]
        with started(*flags, *port_flags(ports)) as process, opened(settings) as door:
            found = Provoked(settings, endpoint, door, process, decoder)
            with found.client() as client:
                client.encode(WARM, "loaded")
            yield found


@contextmanager
def restarted(served: Provoked) -> Iterator[None]:
    """Start the endpoint again at the end, with no request that it has not answered."""
    try:
        yield
    finally:
        served.endpoint.delay_s = 0.0
        served.endpoint.stop()
        served.endpoint.start()


@contextmanager
def silent(served: Provoked) -> Iterator[None]:
    with restarted(served):
        served.endpoint.delay_s = 120.0
        yield


def text(transport: Any) -> Any:
    made = transport.InferInput("text", [1], "BYTES")
    made.set_data_from_numpy(np.array([b"hello"], object))
    return made
