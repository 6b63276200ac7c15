"""Triton's stubs, forked from one process that has imported what they need.

Triton's Python backend starts a program for each step of each model, the stub, in which Python and NumPy take 20 MB and
a third of a second. In its place it gets a stand-in here, which asks the stub nursery to fork it one.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sie_triton.native import compile_program, compile_shared
from sie_triton.processes.stand_in import HANDLE
from sie_triton.processes.supervisor import Companion
from sie_triton.server.data_dir import clean, mark
from sie_triton.server.find_triton import Triton, stage_directory
from sie_triton.settings import Settings

NATIVE = Path(__file__).with_name("native")

BACKEND = "python"
STUB = "triton_python_backend_stub"
REAL_STUB = "real_stub"
LIBRARY = "prepared.so"

# Exit statuses: of a stub that cannot be forked, and of a nursery that cannot fork any.
DECLINED = 121
UNSUITED = 122

Say = Callable[[str], None]


class StubNursery(Companion):
    """The process that forks stubs. Without it each is started by itself."""

    def wait(self) -> str | None:
        how = super().wait()
        assert self._child is not None
        if self._child.status != UNSUITED:
            return how
        self._say(self._child.log().strip())
        return None


def forked(triton: Triton, settings: Settings, say: Say = lambda line: None) -> tuple[Triton, StubNursery | None]:
    """`triton` with stand-ins for its stubs, and the nursery that they ask.

    `triton` itself, and None, where that is not wanted, there is no compiler, or no Python backend.
    """
    source = triton.backend_directory / BACKEND
    if not settings.fork_stubs or not (source / STUB).exists():
        return triton, None
    backend = clean(settings.stub_dir)
    if not _build(backend):
        return triton, None
    for path in source.iterdir():
        (backend / (REAL_STUB if path.name == STUB else path.name)).symlink_to(path)
    environment = {**triton.environment, **mark(settings.data_dir)}
    preloaded = ":".join(filter(None, [str(backend / LIBRARY), environment.get("LD_PRELOAD")]))
    nursery = StubNursery(
        "the stub nursery",
        [str(backend)],
        settings.data_dir / "logs" / "stubs.log",
        {**environment, "LD_PRELOAD": preloaded},
        say,
        program=[str(backend / REAL_STUB)],
        cwd=stage_directory(settings.data_dir),
    )
    return replace(triton, backend_directory=backend.parent), nursery


def _build(backend: Path) -> bool:
    options = f'-DREAL_STUB="{REAL_STUB}"', f"-DDECLINED={DECLINED}", f"-DUNSUITED={UNSUITED}", f"-DHANDLE={HANDLE}", "-O2"
    return compile_program([NATIVE / "standin.c"], backend / STUB, *options) and compile_shared(
        [NATIVE / "prepared.c"], backend / LIBRARY, *options
    )
