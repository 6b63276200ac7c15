"""The chart's NATS servers make a cluster among themselves, which no other server can join."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from benchmarks.ports import free_ports
from sie_triton.cluster.up import nats_server
from tests.support.chart import named, pod_of, rendered

NUM_SERVERS = 3
PASSWORDS = {f"SIE_{each}_PASSWORD": "pAnyPassword" for each in ("GATEWAY", "SIDECAR", "CONFIG", "OPERATOR", "PEER")}
WAIT_S = 30.0


@contextmanager
def running(config: Path, **variables: str) -> Iterator[None]:
    process = subprocess.Popen(
        [nats_server(), "-c", str(config)], env={**os.environ, **PASSWORDS, **variables}, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def peers(monitor: int) -> set[str]:
    """Return the names of the servers that a server has routes to."""
    with urlopen(f"http://127.0.0.1:{monitor}/routez") as response:
        return {each["remote_name"] for each in json.load(response)["routes"]}


def wait_for_peers(monitor: int, number: int) -> set[str]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if len(found := peers(monitor)) >= number:
                return found
        except OSError:  # it has not started yet
            pass
        time.sleep(0.1)
    return peers(monitor)


@pytest.fixture
def environment() -> dict[str, str]:
    """Return the variables of a server's container that have a value."""
    objects = rendered({"nats": {"replicas": NUM_SERVERS}})
    (container,) = pod_of(objects, "StatefulSet", "sie-nats")["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_only_servers_with_the_password_join(tmp_path, environment):
    text = named(rendered({"nats": {"replicas": NUM_SERVERS}}), "ConfigMap", "sie-nats")["data"]["nats.conf"]
    ports = free_ports(3 * (NUM_SERVERS + 1))
    routes = ports[2::3]
    given: dict[str, str] = {}
    for number in range(NUM_SERVERS):
        name = f"SIE_ROUTE_{number}"
        url = environment[name].replace("$(SIE_PEER_PASSWORD)", PASSWORDS["SIE_PEER_PASSWORD"])
        given[name] = url.replace(f"sie-nats-{number}.sie-nats-peers:6222", f"127.0.0.1:{routes[number]}")

    def config(number: int, content: str) -> Path:
        client, monitor, route = ports[3 * number : 3 * number + 3]
        for old, new in (("4222", client), ("8222", monitor), ("6222", route)):
            content = content.replace(f"port: {old}", f"port: {new}")
        path = tmp_path / f"{number}.conf"
        path.write_text(content.replace("/data", str(tmp_path / f"data-{number}")))
        return path

    without = text.replace("authorization: {user: peer, password: $SIE_PEER_PASSWORD}\n", "\n")
    with running(config(0, text), POD_NAME="a", **given), running(config(1, text), POD_NAME="b", **given):
        assert wait_for_peers(ports[1], 1) == {"b"}
        strangers = {name: url.replace("peer:pAnyPassword@", "") for name, url in given.items()}
        with running(config(3, without), POD_NAME="stranger", **strangers):
            with running(config(2, text), POD_NAME="c", **given):
                assert wait_for_peers(ports[1], 2) == {"b", "c"}
            assert "stranger" not in peers(ports[1]) | peers(ports[4])
