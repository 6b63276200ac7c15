"""The controller's HTTP door, on a real socket, and the command line that knocks there."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from aiohttp import web
from click.testing import CliRunner

from sie_triton.bench.compare import free_ports
from sie_triton.cli import cli
from sie_triton.controller.api import application
from sie_triton.controller.commands import act, ask, show
from sie_triton.controller.token import TOKEN_FILE, admin_token
from sie_triton.errors import ServerError
from sie_triton.records.status import RESIDENT
from sie_triton.settings import Settings, read_settings
from tests.controller import stage, wait_for

LONG_NAME = "org__" + "a-very-long-name-of-a-model-" * 3 + "end"


@pytest.fixture
def door(controller, tmp_path) -> Iterator[Settings]:
    """Served without a given token; those of a client that may find it."""
    (port,) = free_ports(1)
    settings = read_settings(data_dir=tmp_path, controller_port=port)
    controller._directory.mkdir(parents=True, exist_ok=True)
    app = application(controller, admin_token(tmp_path, ""))
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", port).start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield settings
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def status_of(settings, path, method="GET", **headers) -> tuple[int, str]:
    request = urllib.request.Request(url(settings, path), method=method, headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def url(settings, path):
    return f"http://127.0.0.1:{settings.controller_port}{path}"


def test_ready_is_what_tritonserver_says(door, control):
    assert status_of(door, "/readyz")[0] == 200
    control.alive = False
    code, text = status_of(door, "/readyz")
    assert code == 503
    assert "tritonserver does not answer" in json.loads(text)["reason"]
    assert status_of(door, "/healthz")[0] == 200


@pytest.mark.parametrize("token", ["wrong", "schlüssel", b"\xff\xfe", ""])
def test_a_wrong_token_of_any_bytes_is_refused(door, token):
    header = b"Bearer " + (token if isinstance(token, bytes) else token.encode())
    code, text = status_of(door, "/v1/models/a/evict", "POST", Authorization=header)
    assert code == 401
    assert "SIE_ADMIN_TOKEN" in text


def test_the_token_of_a_server_without_one_is_found_by_its_own_user(door, controller, control, child, capsys):
    path = door.data_dir / TOKEN_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    stage(controller, "org__a", child.pid)
    wait_for(lambda: "org__a" in controller.models)
    act(door, "org/a", "evict")
    assert "org/a: evict done" in capsys.readouterr().out
    assert control.swapped == [("org__a-inference", False)]
    path.unlink()
    with pytest.raises(ServerError, match="the bearer token is missing or wrong"):
        act(door, "org/a", "evict")


def test_a_given_token_leaves_no_file(tmp_path):
    assert admin_token(tmp_path, "") != admin_token(tmp_path, "")
    assert admin_token(tmp_path, "given") == "given"
    assert not (tmp_path / TOKEN_FILE).exists()


@pytest.mark.parametrize("model", ["a b", "ä", "..", "a?b", "%", "a/b/c"])
def test_any_name_of_a_model_is_answered_in_one_line(door, model):
    with pytest.raises(ServerError) as caught:
        act(door, model, "evict")
    assert len(str(caught.value).splitlines()) == 1
    result = CliRunner().invoke(cli, ["evict", model, "--controller-port", str(door.controller_port)])
    assert isinstance(result.exception, ServerError)


def test_load_after_unload_puts_a_model_into_service(door, controller, control, child):
    with pytest.raises(ServerError, match="unloaded is not served"):
        act(door, "unloaded", "evict")
    with pytest.raises(ServerError, match="unheard of is not served"):
        act(door, "unheard of", "load")
    swap = control.swap

    def swapped(name, *, resident=False):
        swap(name, resident=resident)
        stage(controller, "unloaded", child.pid, state=RESIDENT, generation=1)

    control.swap = swapped
    act(door, "unloaded", "load")
    assert control.loaded == ["unloaded"]
    assert control.swapped == [("unloaded-inference", True)]


def test_load_without_tritonserver_says_so(door, control):
    control.alive = False
    with pytest.raises(ServerError, match="Triton: connection refused"):
        act(door, "unloaded", "load")


def test_status_shows_whole_names_and_json(door, controller, child, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stage(controller, LONG_NAME, child.pid)
    wait_for(lambda: LONG_NAME in controller.models)
    show(door)
    first = "".join(line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line)
    assert first == LONG_NAME.replace("__", "/")
    show(door, as_json=True)
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["model"] == LONG_NAME.replace("__", "/")


def test_something_else_at_the_port_is_told_in_one_line(door):
    with pytest.raises(ServerError, match="is no controller"):
        ask(door, "/metrics")
