"""A process that has imported what every worker needs, and forks workers: `python -m sie_triton.worker.nursery DIR`.

A forked worker is there in milliseconds, and shares the memory of what was imported with all others. Without a
nursery each worker is started by itself, which takes seconds.
"""

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct

from sie_triton.private import private_directory

SOCKET = "nursery.sock"
PID = "nursery.pid"
MAX_DESCRIPTORS = 64

# So long the nursery may take for its imports and a fork; a worker that is started by itself takes seconds.
FORK_TIMEOUT_S = 30.0

# So long it waits for what a stage sends with its connection.
SEND_TIMEOUT_S = 2.0

PEER = Struct("iII")  # pid, user and group, as the kernel knows them


def fork_worker(directory: Path, descriptors: Sequence[int]) -> int | None:
    """The pid of a new worker that serves `descriptors`; None where no nursery in `directory` answers."""
    with suppress(OSError), _short(directory) as path, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(FORK_TIMEOUT_S)
        connection.connect(path)
        if not _is_of_this_user(connection):
            return None
        socket.send_fds(connection, [b"fork"], descriptors)
        pid = connection.recv(16)
        return int(pid) if pid else None
    return None


def serve(directory: Path, prepare: Callable[[], None], work: Callable[[Sequence[int]], None]) -> None:
    """Fork a worker for whoever connects, until this process is ended.

    Who connects before `prepare` is done waits. `work` runs in the worker.
    """
    directory = private_directory(directory)
    (directory / SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, _short(directory) as path:
        listener.bind(path)
        (directory / SOCKET).chmod(0o600)
        listener.listen()
        (directory / PID).write_text(str(os.getpid()))
        prepare()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers here
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                if not _is_of_this_user(connection):
                    continue
                connection.settimeout(SEND_TIMEOUT_S)
                _, descriptors, _, _ = socket.recv_fds(connection, 16, MAX_DESCRIPTORS)
                pid = os.fork()
                if pid == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    listener.close()
                    connection.close()
                    work(descriptors)
                    os._exit(0)
                for descriptor in descriptors:
                    os.close(descriptor)
                connection.sendall(str(pid).encode())


def nursery_pid(directory: Path) -> list[int]:
    """Of the nursery in `directory`, if there has been one."""
    with suppress(OSError, ValueError):
        return [int((directory / PID).read_text())]
    return []


def _is_of_this_user(connection: socket.socket) -> bool:
    """What comes from there is unpickled."""
    _, user, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return bool(user == os.geteuid())


@contextmanager
def _short(directory: Path) -> Iterator[str]:
    """The socket's path in a form that fits into the 107 bytes a socket's address may have."""
    handle = os.open(private_directory(directory), os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


if __name__ == "__main__":
    from sie_triton.engines.torch.imports import import_all
    from sie_triton.worker.__main__ import main

    def prepare() -> None:
        import_all()
        # What is here now stays: workers that collect garbage must not copy it.
        gc.collect()
        gc.freeze()

    serve(Path(sys.argv[1]), prepare, main)
