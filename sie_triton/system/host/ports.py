"""Free ports of the loopback address, and ports that no other user may take."""

import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from sie_triton.errors import ServerError
from sie_triton.system.host.repeated import repeated


def free_ports(count: int, besides: Collection[int] = ()) -> list[int]:
    """Return `count` ports that no program uses now, and that are not among `besides`: others will use those."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            if (port := probe.getsockname()[1]) not in besides:
                found.append(port)
    return found


@contextmanager
def reserved(host: str, ports: Collection[int], retry_s: float = 1.0) -> Iterator[None]:
    """Keep other users from listening on `ports` while the server's programs start, also again after their end.

    They would get the requests, and the token of Triton's model control. The programs must set SO_REUSEPORT: Linux then
    lets sockets of one user share a port. Raise ServerError if another program listens already.
    """
    with ExitStack() as stack:

        def missing(ports: Collection[int]) -> list[int]:
            return [port for port in ports if not _reserve(host, port, stack)]

        def retry() -> None:
            left[:] = missing(left)

        left = missing(ports)
        for port in left:
            _check_free(host, port)
        with repeated(retry, retry_s, "ports"):
            yield


def _reserve(host: str, port: int, stack: ExitStack) -> bool:
    """Bind a socket to the port until `stack` closes; False while connections of an earlier program are closing.

    It does not listen, so it gets no connections. With SO_REUSEADDR another user could bind a socket beside it.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reservation.bind((host, port))
    except OSError:
        reservation.close()
        return False
    stack.enter_context(reservation)
    return True


def _check_free(host: str, port: int) -> None:
    try:
        socket.create_server((host, port)).close()
    except OSError as exc:
        raise ServerError(f"port {port} on {host} cannot be used ({exc.strerror})") from exc
