"""Free ports for servers in benchmarks and tests."""

import socket

# Names of the settings.
PORTS = ("http_port", "grpc_port", "metrics_port", "controller_port", "door_port")


def free_ports(count: int) -> list[int]:
    """Return `count` ports that are currently free."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def ports_of_a_server() -> dict[str, int]:
    """Return a free port for each port setting of a server."""
    return dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
