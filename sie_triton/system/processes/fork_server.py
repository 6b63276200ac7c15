"""The fork server: a process that has imported what its children need, and forks them.

    python -m sie_triton.system.processes.fork_server MODULE DIR

MODULE has `import_all()` and `main(descriptors)`. A forked process starts in milliseconds, and shares the memory of the
imported modules with all others. Without a fork server each process starts by itself, which takes seconds. With
`lazily` as last argument the server imports on its first request for a process; until then it takes little memory.
"""

import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from struct import Struct

from sie_triton.system.host.files import write_atomically
from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.child import Child
from sie_triton.system.processes.pids import ProcessId

# States in the file PID. A lazy fork server is WAITING until its first use.
WAITING, IMPORTING, READY = "waiting", "importing", "ready"

# Subdirectory of the further fork servers, in the directory of the first one.
OTHERS = "fork_servers"

SOCKET = "fork_server.sock"
PID = "fork_server.pid"

# Timeout in seconds for the imports and a fork. Starting a process without the fork server takes seconds too.
FORK_TIMEOUT_S = 30.0

# Signals by which only a fault of the process's own code ends it.
FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

PEER = Struct("iII")  # pid, user and group, as the kernel knows them
NUMBER_BYTES = 16


class Forked(Child):
    """A child of the fork server, which sends the child's exit status over `news`."""

    def __init__(self, pid: int, handle: int, news: socket.socket) -> None:
        super().__init__(pid, handle)
        self._news = news
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        if self._news.fileno() >= 0:
            self._news.settimeout(1.0)
            with self._news, suppress(OSError, ValueError):
                self._status = int(self._news.recv(NUMBER_BYTES))
        return self._status


def fork(directory: Path, descriptors: Sequence[int]) -> Forked | None:
    """Fork a process that serves `descriptors`; None if no fork server in `directory` answers."""
    news = socket.socket(socket.AF_UNIX)
    with suppress(OSError), _short(directory) as path:
        news.settimeout(FORK_TIMEOUT_S)
        news.connect(path)
        if _is_of_this_user(news):
            socket.send_fds(news, [b"fork"], descriptors)
            pid, handles, _, _ = socket.recv_fds(news, NUMBER_BYTES, 1)
            if handles:
                return Forked(int(pid), handles[0], news)
    news.close()
    return None


def fork_server_directory(directory: Path, name: str) -> Path:
    """Return the directory of the fork server with this name; the first one has no name."""
    return directory / OTHERS / name if name else directory


def fork_server_ids(directory: Path) -> list[ProcessId]:
    """Return the processes of all fork servers that were announced in `directory`."""
    return list(_announced(directory))


def importing_ids(directory: Path) -> list[ProcessId]:
    """Return the fork servers in `directory` that are importing; a lazy one imports at its first use."""
    return [process for process, state in _announced(directory).items() if state == IMPORTING and process.is_alive]


def answers(directory: Path) -> bool:
    """True if the fork server in `directory` itself is alive."""
    return any(process.is_alive for process in _announced(directory, [directory / PID]))


@dataclass(frozen=True, slots=True)
class _Born:
    """A child in the fork server: only the parent can read its exit status."""

    handle: int
    news: socket.socket

    def reap(self) -> None:
        found = os.waitid(os.P_PIDFD, self.handle, os.WEXITED)
        assert found is not None
        status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        if -status in FAULTS:
            sys.stderr.write(f"process {found.si_pid} ended by {signal.Signals(-status).name}\n")
            sys.stderr.flush()
        with suppress(OSError):  # the process that asked for the child has ended
            self.news.sendall(str(status).encode())
        self.forget()

    def forget(self) -> None:
        os.close(self.handle)
        self.news.close()


class ForkServer:
    """Forks a process for each connection to `listener`."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._born: dict[int, _Born] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def serve(self) -> Sequence[int]:
        """Serve until this process ends. Returns only in forked processes, with the descriptors sent for them."""
        while True:
            for ready, _ in self._poll.poll():
                if ready in self._born:
                    self._poll.unregister(ready)
                    self._born.pop(ready).reap()
                elif (descriptors := self._accept()) is not None:
                    return descriptors

    def _accept(self) -> Sequence[int] | None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            try:
                return self._fork(connection)
            except OSError:
                connection.close()
                raise
        return None

    def _fork(self, connection: socket.socket) -> Sequence[int] | None:
        if not _is_of_this_user(connection):
            raise PermissionError("another user asks")
        connection.settimeout(2.0)  # for its descriptors
        _, descriptors, _, _ = socket.recv_fds(connection, NUMBER_BYTES, 64)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                for descriptor in descriptors:
                    os.close(descriptor)
        if pid == 0:
            self._leave(connection)
            return descriptors
        # Only this thread reaps the child, so the pid still belongs to it.
        handle = os.pidfd_open(pid)
        self._born[handle] = _Born(handle, connection)
        self._poll.register(handle, select.POLLIN)
        socket.send_fds(connection, [str(pid).encode()], [handle])
        return None

    def _leave(self, connection: socket.socket) -> None:
        """Close the fork server's descriptors in the child."""
        try:
            connection.close()
            for sibling in self._born.values():
                sibling.forget()
        except BaseException:  # the child must not become a second fork server
            traceback.print_exc()
            os._exit(1)


def serve(directory: Path, prepare: Callable[[], None], *, lazily: bool = False) -> Sequence[int]:
    """Fork a process for each connection, until this process ends.

    Connections wait until `prepare` is done; with `lazily` it starts at the first connection. Returns only in forked
    processes, with the descriptors sent for them.
    """
    directory = private_directory(directory)
    (directory / SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, _short(directory) as path:
        listener.bind(path)
        (directory / SOCKET).chmod(0o600)
        listener.listen()
        if lazily:
            _announce(directory, WAITING)
            select.select([listener], [], [])
        _announce(directory, IMPORTING)
        prepare()
        _announce(directory, READY)
        return ForkServer(listener).serve()


def _announce(directory: Path, state: str) -> None:
    pid, started = ProcessId.of(os.getpid())
    write_atomically(directory / PID, f"{pid} {started} {state}")


def _announced(directory: Path, paths: Iterable[Path] | None = None) -> dict[ProcessId, str]:
    """Map the fork servers announced in `paths`, or all in `directory`, to their states."""
    found = {}
    for path in paths or (directory / PID, *directory.glob(f"{OTHERS}/*/{PID}")):
        with suppress(OSError, ValueError):
            pid, started, state = path.read_text().split()
            found[ProcessId(int(pid), int(started))] = state
    return found


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Import within this context; garbage is collected once, at its end, which saves a seventh of the processor time.

    The imported objects are then frozen, so that garbage collection in children does not copy their memory.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def _is_of_this_user(connection: socket.socket) -> bool:
    """True if the peer belongs to this user. Must be checked, because its data is unpickled."""
    _, user, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return bool(user == os.geteuid())


@contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Give the socket's path in a form that fits into the 107 bytes of a socket address."""
    handle = os.open(private_directory(directory), os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


def main(name: str, directory: Path, *, lazily: bool) -> None:
    """Fork processes that run `main` of the module `name`, after a call of its `import_all`."""

    def prepare() -> None:
        with frozen_imports(), suppress(ImportError):  # a child that needs the missing module reports it
            import_module(name).import_all()

    descriptors = serve(directory, prepare, lazily=lazily)
    try:
        import_module(name).main(descriptors)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _, module, where, *options = sys.argv
    main(module, Path(where), lazily=bool(options))
