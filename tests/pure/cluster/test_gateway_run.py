"""The start of a gateway's process."""

import resource

from sie_triton.cluster.gateway import run as gateway
from sie_triton.cluster.gateway.port import options
from sie_triton.doors.connections import RESERVED_DESCRIPTORS
from sie_triton.settings import read_settings


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
