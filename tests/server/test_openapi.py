"""/openapi.json is valid OpenAPI 3.1, and the door does what it says: openapi-spec-validator and schemathesis."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from openapi_spec_validator import validate

from sie_triton.doors.endpoint import Door
from sie_triton.doors.triton import TritonBackend
from sie_triton.settings import Settings
from tests.conftest import BGE_M3, CLAP, CLIP, CROSS_ENCODER, GLINER, TINY, Running
from tests.support.doors import listening

ROOT = Path(__file__).parents[2]
TOKEN = {"Authorization": "Bearer secret"}

# Routes whose bodies and examples tests/pure/doors/test_doors_dialects.py compares with the document.
COMPARED = "^/(v[12]/)?(embeddings|embed|rerank|predict|similarity|score|classify|pooling)$"

# One model a verb: where several models share a route, its schema has what any of them takes.
MODELS = (BGE_M3, GLINER)


class Narrow:
    """Backend that serves these models alone."""

    def __init__(self, door: Door, models: Sequence[str]) -> None:
        self._names, self._models = door.backend.names, models
        door.backend.names = self.names

    async def names(self) -> list[str]:
        return [name for name in await self._names() if name in self._models]


def door_before(settings: Settings) -> Door:
    return Door(settings, TritonBackend(settings))


@pytest.fixture(scope="module")
def url(server: Running) -> Iterator[str]:
    """Door in this process, in front of the server that all tests share; it requires a token."""
    door = door_before(server.settings.model_copy(update={"auth_mode": "token", "auth_tokens": "secret"}))
    Narrow(door, MODELS)
    with listening(door) as port:
        url = f"http://127.0.0.1:{port}"
        load(url)
        yield url


def load(url: str) -> None:
    """Load every model by the document's own examples."""
    with httpx.Client(base_url=url, headers=TOKEN, timeout=60) as client:
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for body in (each.get("requestBody", {}).get("content", {}) for each in methods.values()):
                if "example" in body.get("application/json", {}):
                    named = path.format(model=GLINER if "extract" in path else BGE_M3)
                    assert client.post(named, json=body["application/json"]["example"]).status_code == 200


def test_the_document_is_valid(url):
    validate(httpx.get(f"{url}/openapi.json", headers=TOKEN).json())


@pytest.mark.parametrize("models", [(), (TINY, BGE_M3, CROSS_ENCODER), (CLIP, CLAP)], ids=len)
def test_the_document_is_valid_for_other_models_too(server, models):
    door = door_before(server.settings)
    Narrow(door, models)
    with listening(door) as port:
        document = httpx.get(f"http://127.0.0.1:{port}/openapi.json").json()
    validate(document)
    named = {name for path in document["paths"].values() for name in _models_of(path)}
    assert named == set(models)


def _models_of(path):
    parameters = [each for operation in path.values() for each in operation.get("parameters", ())]
    return [name for each in parameters if each["name"] == "model" for name in each["schema"].get("enum", ())]


def test_the_door_conforms_to_its_openapi_document(url, tmp_path):
    run_schemathesis(url, tmp_path, "examples,coverage", "--exclude-path-regex", COMPARED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_door_conforms_to_its_openapi_document_in_thousands_of_cases(url, tmp_path, seed):
    """Several thousand cases: 200 for each operation, beside some 2,000 that schemathesis enumerates."""
    run_schemathesis(url, tmp_path, "examples,coverage,fuzzing", "--max-examples", "200", "--seed", str(seed))


def run_schemathesis(url: str, directory: Path, phases: str, *options: str) -> None:
    """Run it in `directory`, where it keeps what it finds."""
    given = [
        "--config-file",
        str(ROOT / "tests/support/openapi/schemathesis.toml"),
        "--no-color",
        "run",
        f"{url}/openapi.json",
    ]
    chosen = ["--phases", phases, *options]
    header = ["--request-timeout", "60", "--header", f"Authorization: {TOKEN['Authorization']}"]
    command = [sys.executable, "-m", "schemathesis.cli", *given, *chosen, *header]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # of the hooks
    ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2000:]
