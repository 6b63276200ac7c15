"""Errors of servers of several kinds, as commands show them."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from sie_triton.client.address import Address
from sie_triton.cluster import commands as cluster
from sie_triton.controller.commands import ask, show
from sie_triton.errors import ServerError
from sie_triton.settings import read_settings
from tests.support.http_stub import NO_HEADERS, answering


@pytest.fixture
def refusing():
    """Return a function that makes a server refuse everything, and returns the settings of commands that call it."""
    with ExitStack() as servers:

        def start(status: int, body: str):
            port = servers.enter_context(answering(lambda _: (status, body.encode(), NO_HEADERS)))
            return {"controller_port": port, "gateway_url": f"http://127.0.0.1:{port}"}

        yield start


def show_door(settings):
    cluster.show(Address.parse(settings.gateway_url, settings.auth_tokens))


@pytest.mark.parametrize(
    "body", ['{"detail": {"code": "X", "message": "too busy"}}', '{"message": "too busy"}', "too busy"]
)
def test_the_message_of_a_refusal_is_shown(refusing, tmp_path, body):
    settings = read_settings(data_dir=tmp_path, **refusing(503, body))
    for command in (
        lambda: ask(settings, "/v1/models"),
        lambda: show_door(settings),
    ):
        with pytest.raises(ServerError, match=r"^too busy$"):
            command()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, "Not Found"),
        (404, ""),
        (404, "<html>404</html>"),
        (400, '{"error": "failed to find model"}'),
        (404, "[]"),
        (404, '{"detail": {"code": "NOT_FOUND", "message": "Not Found"}}'),
        (200, '{"models": []}'),
        (200, "[]"),
        (200, "OK"),
    ],
)
def test_a_server_of_another_kind_is_named_in_a_sentence(refusing, tmp_path, status, body):
    settings = read_settings(data_dir=tmp_path, **refusing(status, body))
    for command, kind in ((show, "controller"), (show_door, "door or gateway")):
        with pytest.raises(ServerError, match=rf"^the server at http\S+ is not a {kind}; "):
            command(settings)


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_command_without_the_token_says_what_gives_it(refusing, tmp_path, token):
    settings = read_settings(data_dir=tmp_path, auth_tokens=token, **refusing(401, '{"detail": {"message": "no"}}'))
    given = "does not accept the" if token else "needs a"
    with pytest.raises(
        ServerError, match=rf"the door or gateway at http\S+ {given} .* --auth-tokens \(SIE_AUTH_TOKENS\)$"
    ):
        show_door(settings)
    with pytest.raises(
        ServerError, match=rf"the controller at http\S+ {given} .*--auth-tokens .*--admin-token .*--data-dir"
    ):
        ask(settings, "/v1/models")


def test_a_controller_does_not_share_the_port_of_another_one(tmp_path):
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "sie_triton.cli", "controller", "--controller-port", port]
        environment = {**os.environ, "SIE_DATA_DIR": str(tmp_path / "data")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert port in done.stderr
    assert "Traceback" not in done.stderr
