"""Thousands of idle or very slow connections."""

import resource
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

# Number of connections to each port.
NUM_IDLE = NUM_SLOW = 2000

SLOWLY = b"POST /v1/encode/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\nX-Padding: "


@contextmanager
def crowd(ports: Sequence[int]) -> Iterator[list[int]]:
    """Keep NUM_IDLE and NUM_SLOW connections to each port and reopen closed ones; yield the number opened so far."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made, stopped = [0], threading.Event()
    threads = [threading.Thread(target=_keep, args=(port, slow, made, stopped)) for port in ports for slow in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def _keep(port: int, slow: bool, made: list[int], stopped: threading.Event) -> None:
    """Send one byte a second on each slow connection."""
    held: list[socket.socket] = []
    while not stopped.wait(1.0):
        held = [each for each in held if _is_open(each, SLOWLY[:1] if slow else b"")]
        while len(held) < (NUM_SLOW if slow else NUM_IDLE) and not stopped.is_set():
            with suppress(OSError):
                client = socket.create_connection(("127.0.0.1", port), 1.0)
                client.sendall(SLOWLY if slow else b"")
                client.setblocking(False)
                held.append(client)
            made[0] += 1
    for each in held:
        each.close()


def _is_open(client: socket.socket, send: bytes) -> bool:
    try:
        if send:
            client.send(send)
        if client.recv(1000):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    client.close()
    return False
