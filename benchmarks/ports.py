"""Free ports for servers in benchmarks and tests."""

from sie_triton.system.host.ports import free_ports

__all__ = ["free_ports", "ports_of_a_server"]

# Names of the settings.
PORTS = ("http_port", "grpc_port", "metrics_port", "controller_port", "door_port")


def ports_of_a_server() -> dict[str, int]:
    """Return a free port for each port setting of a server."""
    return dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
