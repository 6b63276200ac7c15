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
import yaml

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.settings import Settings
from tests.conftest import fresh_settings, model_file
from tests.server.conftest import opened
from tests.server.test_remote import without_weights
from tests.server.test_serve import port_flags, sie
from tests.support.models import save_bert
from tests.support.openai_endpoint import Endpoint
from tests.support.sdk import python

PACKAGE = "sie-sdk==0.10.1"
WARM, COLD, GONE = "test/warm", "test/cold", "test/gone"


@dataclass(frozen=True)
class Provoked:
    settings: Settings
    endpoint: Endpoint
    door: str
    launcher: subprocess.Popen[str]

    def address(self, protocol: str) -> str:
        return f"127.0.0.1:{getattr(self.settings, f'{protocol}_port')}"


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
    _, small = without_weights(save_bert, root / "d", minilm_directory, pooling="lasttoken")
    (root / "models").mkdir()
    settings = fresh_settings(root)
    with Endpoint(lambda items: [[1.0, *[0.0] * 63]] * len(items)) as endpoint:
        for name in (WARM, COLD, GONE):
            directory = root / "nothing" if name == GONE else small
            content = model_file(name, directory, "sentence_transformer", {"encode": {"dense": {"dim": 64}}})
            model = yaml.safe_load(content)
            if name != GONE:
                model["profiles"]["default"]["endpoint"] = {"url": endpoint.url, "model": "there"}
            (root / "models" / f"{triton_name(name)}.yaml").write_text(yaml.safe_dump(model))
        flags = [f"--models-dir={root / 'models'}", f"--data-dir={settings.data_dir}", "--device=cpu"]
        ports = [settings.http_port, settings.grpc_port, settings.metrics_port, settings.controller_port]
        process = sie("serve", *flags, *port_flags(ports))
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready == "SIE ready\n", process.communicate()[1]
            with opened(settings) as door:
                found = Provoked(settings, endpoint, door, process)
                with SIEClient(found.address("grpc")) as client:
                    client.encode(WARM, "loaded")
                yield found
        finally:
            process.terminate()
            process.communicate(timeout=30)


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
