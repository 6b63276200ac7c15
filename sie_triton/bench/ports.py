"""Ports of this machine for servers that are started to be measured, or tested."""

import socket

# As settings name them.
PORTS = ("http_port", "grpc_port", "metrics_port", "controller_port", "door_port")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def ports_of_a_server() -> dict[str, int]:
    """For settings: a free port for each that a server listens on."""
    return dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
