"""Commands of a cluster warn of settings that have no effect there, before they look at their ports."""

import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from sie_triton.cli import cli

PORTS = {"gateway": "door-port", "sidecar": "worker-metrics-port", "config-service": "config-port"}
COMMANDS = [*PORTS, "cluster up"]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def warnings_of(command: str, port: int) -> list[str]:
    """Return the warnings of a command that ends because its port is taken."""
    flag = PORTS.get(command, "door-port")
    told = CliRunner().invoke(cli, [*command.split(), f"--{flag}={port}"])
    assert told.exit_code == 1
    assert str(port) in str(told.exception)
    return [line for line in told.stderr.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_warns_of_misspelled_and_unread_variables(tmp_path, monkeypatch, taken_port, command):
    monkeypatch.chdir(tmp_path)
    assert warnings_of(command, taken_port) == []
    monkeypatch.setenv("SIE_POOOL", "l4")
    monkeypatch.setenv("SIE_IPC_POOL_SIZE", "4")
    unread, misspelled = warnings_of(command, taken_port)
    assert unread.startswith("warning: SIE_IPC_POOL_SIZE has no effect here: ")
    assert misspelled.endswith("; did you mean SIE_POOL?")


@pytest.mark.parametrize(
    ("command", "makes_queue"),
    [("gateway", False), ("sidecar", False), ("config-service", True), ("cluster up", True)],
)
def test_a_command_that_does_not_make_the_queue_warns_of_its_settings(
    tmp_path, monkeypatch, taken_port, command, makes_queue
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIE_QUEUE_REPLICAS", "3")
    (tmp_path / "sie.yaml").write_text("queue_max_messages: 5\n")
    made = "has no effect here: the config service makes the queue"
    told = [f"warning: SIE_QUEUE_REPLICAS {made}", f"warning: sie.yaml: queue_max_messages {made}"]
    assert warnings_of(command, taken_port) == ([] if makes_queue else told)
