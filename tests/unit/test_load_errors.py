"""Why a model cannot be loaded is told apart, and survives the way to the client."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.errors import REASONS, LoadError
from sie_triton.measurements import Measurements
from sie_triton.weights import locate
from sie_triton.worker.__main__ import load_error, naming_want_of_memory
from tests.stages import spec

# What the model hub says of repositories that one may not, or cannot, have.
HUB_ANSWERS = {"gated": (403, "GatedRepo"), "absent": (404, "RepoNotFound"), "broken": (500, "")}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, code = next(answer for name, answer in HUB_ANSWERS.items() if f"org/{name}" in self.path)
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def reasons(endpoint: str, tmp_path, names: list[str], *, allow_hub: bool = True) -> list[str]:
    """What `locate` says, in a process that takes that endpoint for the hub."""
    script = (
        "import sys\n"
        "from sie_triton.errors import LoadError\n"
        "from sie_triton.weights import locate\n"
        "for name in sys.argv[2:]:\n"
        "    try:\n"
        "        locate(f'hub://org/{name}', allow_hub=sys.argv[1] == 'True')\n"
        "    except LoadError as exc:\n"
        "        print(exc.reason)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", script, str(allow_hub), *names]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_what_the_hub_says(hub, tmp_path):
    assert reasons(hub, tmp_path, ["gated", "absent", "broken"]) == ["gated", "not found", "network"]
    assert reasons("http://127.0.0.1:9", tmp_path, ["gated"]) == ["network"]
    assert reasons(hub, tmp_path, ["gated"], allow_hub=False) == ["not found"]


def test_what_is_on_the_disk(tmp_path):
    for weights, reason in ((str(tmp_path / "nothing"), "not found"), ("package://no_such_package/x", "dependency")):
        with pytest.raises(LoadError) as caught:
            locate(weights, allow_hub=False)
        assert caught.value.reason == reason


def test_what_went_wrong_in_the_worker():
    caused = LoadError("weights cannot be loaded", "corrupt")
    caused.__cause__ = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    with pytest.raises(LoadError) as told, naming_want_of_memory(TorchEngine(spec(), "cpu", Measurements())):
        raise caused
    assert load_error(told.value).reason == "out of memory"
    assert load_error(ImportError("No module named 'einops'")).reason == "dependency"
    assert load_error(LoadError("x", "corrupt")).reason == "corrupt"
    assert load_error(ZeroDivisionError()).reason == "failed"


@pytest.mark.parametrize("reason", REASONS)
def test_the_reason_survives_the_way_to_the_client(reason):
    error = pickle.loads(pickle.dumps(LoadError("details", reason))).refusal("what next")
    assert LoadError.parse(str(error)).reason == reason
    assert LoadError.parse("the server is busy") is None
