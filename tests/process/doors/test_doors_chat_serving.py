"""Chats forwarded to a server that computes them, `transformers serve`, for which fastapi is installed."""

import os
import subprocess
import sys
import time

import httpx
import openai
import pytest
import yaml

from sie_triton.contract.spec import Runtime
from sie_triton.models.catalog import load_file
from sie_triton.records.known_file import FORWARDED, write_known
from sie_triton.system.host.ports import free_ports
from tests.support.doors import door_of, listening
from tests.support.models import save_causal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "org/chat"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
MESSAGES = [{"role": "user", "content": "roses climb up"}]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory, minilm_directory):
    """The URL of the server, and its model."""
    root = tmp_path_factory.mktemp("serving")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", root / "packages"]
    subprocess.run([*pip, "fastapi<1", "annotated-doc"], check=True)
    save_causal(root / "model", minilm_directory)
    (root / "model" / "chat_template.jinja").write_text(TEMPLATE)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", root / "model", "--port", str(port)]
    paths = os.pathsep.join([str(root / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = subprocess.Popen([*command, "--device", "cpu"], env={**os.environ, "PYTHONPATH": paths})
    url = f"http://localhost:{port}"
    try:
        while not answers(url):
            assert server.poll() is None
            time.sleep(0.2)
        yield url, str(root / "model")
    finally:
        server.terminate()
        server.wait(30)


def answers(url):
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False


@pytest.fixture
def client(endpoint, tmp_path):
    url, model = endpoint
    file = {
        "sie_id": MODEL,
        "tasks": {"generate": {}},
        "profiles": {"default": {"endpoint": {"url": url, "model": model}}},
    }
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(file))
    write_known(tmp_path, {MODEL: load_file(tmp_path / "chat.yaml").resolve(Runtime()).to_json()}, FORWARDED)
    door, backend = door_of(data_dir=tmp_path)
    backend.is_beside_server = True
    with listening(door) as port, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        yield client


def test_chats_are_those_of_the_server(client, endpoint):
    url, model = endpoint
    asked = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as direct:
        expected = direct.chat.completions.create(model=model, **asked).choices[0].message.content
    assert client.chat.completions.create(model=MODEL, **asked).choices[0].message.content == expected
    pieces = [each.choices for each in client.chat.completions.create(model=MODEL, stream=True, **asked)]
    assert "".join(choice.delta.content or "" for choices in pieces for choice in choices) == expected
    assert len(pieces) > 2


def test_completions_and_responses_are_answered(client):
    assert client.completions.create(model=MODEL, prompt="roses", max_tokens=4).choices[0].text
    response = client.responses.create(model=MODEL, input="roses climb up", max_output_tokens=8, stream=False)
    assert response.output_text
