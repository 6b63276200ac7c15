"""The start of a gateway's process."""

import asyncio
import resource
from types import SimpleNamespace

import pytest

from sie_triton.cluster.gateway import run as gateway
from sie_triton.cluster.gateway.port import Port, options
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.http.connection import RESERVED_DESCRIPTORS
from sie_triton.settings import read_settings
from sie_triton.system.telemetry import tracing
from tests.support.joiners import in_loop


def test_the_ports_share_the_descriptors_of_the_process(tmp_path, monkeypatch):
    most = RESERVED_DESCRIPTORS + 300
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    doors = []
    monkeypatch.setattr(gateway, "serve", lambda door, more: doors.append(door))
    monkeypatch.setattr(gateway.logs, "configure", lambda options: None)
    gateway.run(read_settings(data_dir=tmp_path))
    (door,) = doors
    assert door.connections._limit == 100
    assert dict(options(door.backend._settings))["grpc.max_allowed_incoming_connections"] == 100


@pytest.mark.parametrize("given", [{}, {"OTEL_SERVICE_NAME": "mine"}])
def test_spans_of_a_gateway_have_its_name(tmp_path, monkeypatch, given):
    environment: dict[str, str] = {**given, "OTEL_TRACES_EXPORTER": "none"}
    monkeypatch.setattr(gateway.os, "environ", environment)
    monkeypatch.setattr(gateway, "serve", lambda door, more: None)
    monkeypatch.setattr(gateway.logs, "configure", lambda options: None)
    gateway.run(read_settings(data_dir=tmp_path))
    tracing.spans_of(environment)
    assert environment["OTEL_SERVICE_NAME"] == given.get("OTEL_SERVICE_NAME", "sie-gateway")


@in_loop
async def test_the_port_is_watched_after_an_error_too(tmp_path):
    class Receiving:
        num_looks = 0

        def look(self) -> None:
            self.num_looks += 1
            if self.num_looks == 1:
                raise OSError("no file handle is left")

    async def wait_for_termination(seconds: float) -> bool:
        return False

    async def stop(grace_s: float | None) -> None:
        pass

    class Watched(Port):
        async def _add_server(self) -> None:
            self._servers.append(SimpleNamespace(wait_for_termination=wait_for_termination, stop=stop))

    receiving = Receiving()
    watched = Watched(read_settings(data_dir=tmp_path), None, receiving, GatewayLimits(restart_s=0.01))
    await watched.start()
    while receiving.num_looks < 3:
        await asyncio.sleep(0.01)
    await watched.stop(0)
