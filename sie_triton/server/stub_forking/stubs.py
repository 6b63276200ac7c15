"""Triton's stubs, forked from one process that has imported the modules they need.

Triton's Python backend starts a program for each step of each model: the stub, in which Python and NumPy take 20 MB and
a third of a second. This module replaces that program by a stand-in, for which the stub fork server forks a stub.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic, sleep

from sie_triton.server.data_dir import clean, environment_of, log_of
from sie_triton.server.find_triton import Triton, stage_directory
from sie_triton.settings import Settings
from sie_triton.system.native.builds import INSTALL, PREPARED, STAND_IN
from sie_triton.system.native.loading import preloading, put
from sie_triton.system.processes.fork_server import fork_server_ids
from sie_triton.system.processes.pids import is_alive
from sie_triton.system.processes.supervisor import Companion

STUB = "triton_python_backend_stub"
REAL_STUB = "real_stub"
LIBRARY = "prepared.so"

# Exit statuses of a stub that cannot be forked, and of a fork server that cannot fork any. The C code has them in
# server/stub_forking/native/shared.h.
DECLINED = 121
UNSUITED = 122

Say = Callable[[str], None]


class StubForkServer(Companion):
    """The fork server of stubs. Without it, each stub is started on its own.

    If the fork server ends before it listens, or reports that it is unsuited, it is not restarted.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str], say: Say) -> None:
        self._directory = settings.stub_dir
        super().__init__(
            "the stub fork server",
            [str(self._directory)],
            log_of(settings, "stubs"),
            environment,
            say,
            program=[str(self._directory / REAL_STUB)],
            cwd=stage_directory(settings.data_dir),
        )

    def __enter__(self) -> "StubForkServer":
        """Start the fork server and wait until it listens, so that the first stubs are forked too."""
        super().__enter__()
        deadline = monotonic() + 5.0  # Python needs that time to start
        while not self._listens() and is_alive(self.pid) and monotonic() < deadline:
            sleep(0.01)
        return self

    def wait(self) -> str | None:
        how = super().wait()
        assert self._child is not None
        if self._child.status == UNSUITED:
            self._say(self._child.log().strip().splitlines()[-1])
            return None
        if not self._listens():
            self._say(f"stubs are not forked: {self.name} ended {how}; the log says more: {self.log.path}")
            return None
        return how

    def _listens(self) -> bool:
        return self.pid in [process.pid for process in fork_server_ids(self._directory)]


def forked(triton: Triton, settings: Settings, say: Say = lambda line: None) -> tuple[Triton, StubForkServer | None]:
    """Return `triton` with stand-ins for its stubs, and the fork server that forks the stubs.

    Return `triton` itself and None if forking is turned off, the programs cannot be built, or there is no Python
    backend.
    """
    source = triton.backend_directory / "python"
    if not settings.fork_stubs or not (source / STUB).exists():
        return triton, None
    backend = clean(settings.stub_dir)
    if not (put(STAND_IN, backend / STUB) and put(PREPARED, backend / LIBRARY)):
        say(
            "stubs are not forked, so each takes 20 MB more: the program that forks them cannot be compiled, or "
            f"{backend} is mounted noexec; {INSTALL}, or set SIE_DATA_DIR to a directory where programs may run"
        )
        return triton, None
    for path in source.iterdir():
        (backend / (REAL_STUB if path.name == STUB else path.name)).symlink_to(path)
    environment = preloading(backend / LIBRARY, {**triton.environment, **environment_of(settings)})
    fork_server = StubForkServer(settings, environment, say)
    return replace(triton, backend_directory=backend.parent), fork_server
