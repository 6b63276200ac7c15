"""A process that has imported what its children need, and forks them.

`python -m sie_triton.processes.nursery MODULE DIR`, where MODULE has `import_all()` and `main(descriptors)`. A forked
process is there in milliseconds, and shares the memory of what was imported with all others. Without a nursery each is
started by itself, which takes seconds. With `lazily` as last argument it imports when it is first asked for a process:
until then it is small.
"""

import gc
import os
import select
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from struct import Struct

from sie_triton.private import private_directory
from sie_triton.processes.child import Child
from sie_triton.processes.pids import ProcessId

# States in the file PID. A lazy nursery is WAITING until its first use.
WAITING, IMPORTING, READY = "waiting", "importing", "ready"

# Of those beside the first one, below its directory.
OTHERS = "nurseries"

SOCKET = "nursery.sock"
PID = "nursery.pid"
MAX_DESCRIPTORS = 64

# So long the nursery may take for its imports and a fork; a process that is started by itself takes seconds.
FORK_TIMEOUT_S = 30.0

# So long it waits for what a stage sends with its connection.
SEND_TIMEOUT_S = 2.0

# So long it may take to say how a child of its own has ended.
NEWS_S = 1.0

PEER = Struct("iII")  # pid, user and group, as the kernel knows them
NUMBER_BYTES = 16


class Forked(Child):
    """A child of the nursery, which says over `news` how it has ended."""

    def __init__(self, pid: int, handle: int, news: socket.socket) -> None:
        super().__init__(pid, handle)
        self._news = news
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        if self._news.fileno() >= 0:
            self._news.settimeout(NEWS_S)
            with self._news, suppress(OSError, ValueError):
                self._status = int(self._news.recv(NUMBER_BYTES))
        return self._status


def fork(directory: Path, descriptors: Sequence[int]) -> Forked | None:
    """A new process that serves `descriptors`; None where no nursery in `directory` answers."""
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


def nursery_directory(directory: Path, name: str) -> Path:
    """Where the one of that name is; the first has none."""
    return directory / OTHERS / name if name else directory


def nursery_ids(directory: Path) -> list[ProcessId]:
    """Of the nurseries in `directory`, if there have been some."""
    return list(_announced(directory))


def importing_ids(directory: Path) -> list[ProcessId]:
    """Processes of the nurseries in `directory` that are importing; a lazy nursery imports from its first use on."""
    return [process for process, state in _announced(directory).items() if state == IMPORTING and process.is_alive]


def answers(directory: Path) -> bool:
    """True if the nursery in `directory` itself is alive."""
    return any(process.is_alive for process in _announced(directory, [directory / PID]))


@dataclass(frozen=True, slots=True)
class _Born:
    """A child as the nursery has it: its parent alone can ask how it ended."""

    handle: int
    news: socket.socket

    def reap(self) -> None:
        found = os.waitid(os.P_PIDFD, self.handle, os.WEXITED)
        assert found is not None
        status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        with suppress(OSError):  # nobody is there to read it
            self.news.sendall(str(status).encode())
        self.forget()

    def forget(self) -> None:
        os.close(self.handle)
        self.news.close()


class Nursery:
    """Forks a process for whoever connects to `listener`."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._born: dict[int, _Born] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def serve(self) -> Sequence[int]:
        """Until this process is ended; returns in each that it forks, with the descriptors that were sent for it."""
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
        connection.settimeout(SEND_TIMEOUT_S)
        _, descriptors, _, _ = socket.recv_fds(connection, NUMBER_BYTES, MAX_DESCRIPTORS)
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
        # Nobody but this thread reaps it, so the pid is still its own.
        handle = os.pidfd_open(pid)
        self._born[handle] = _Born(handle, connection)
        self._poll.register(handle, select.POLLIN)
        socket.send_fds(connection, [str(pid).encode()], [handle])
        return None

    def _leave(self, connection: socket.socket) -> None:
        """The child keeps nothing of the nursery's."""
        try:
            connection.close()
            for sibling in self._born.values():
                sibling.forget()
        except BaseException:  # never a second nursery
            traceback.print_exc()
            os._exit(1)


def serve(directory: Path, prepare: Callable[[], None], *, lazily: bool = False) -> Sequence[int]:
    """Fork a process for whoever connects, until this process is ended.

    Who connects before `prepare` is done waits; `lazily` it begins only then. Returns in what is forked, with the
    descriptors that were sent for it.
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
        return Nursery(listener).serve()


def _announce(directory: Path, state: str) -> None:
    pid, started = ProcessId.of(os.getpid())
    fresh = directory / f"{PID}.new"
    fresh.write_text(f"{pid} {started} {state}")
    fresh.replace(directory / PID)


def _announced(directory: Path, paths: Iterable[Path] | None = None) -> dict[ProcessId, str]:
    """State by process of the nurseries announced in `paths`, or of all in `directory`."""
    found = {}
    for path in paths or (directory / PID, *directory.glob(f"{OTHERS}/*/{PID}")):
        with suppress(OSError, ValueError):
            pid, started, state = path.read_text().split()
            found[ProcessId(int(pid), int(started))] = state
    return found


def keep_what_is_here() -> None:
    """What was imported stays: processes that collect garbage must not copy it."""
    gc.collect()
    gc.freeze()


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


def main(name: str, directory: Path, *, lazily: bool) -> None:
    """Fork workers that run the `main` of the module `name`, which says what to import before."""

    def prepare() -> None:
        with suppress(ImportError):  # who needs what is missing says so
            import_module(name).import_all()
        keep_what_is_here()

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
