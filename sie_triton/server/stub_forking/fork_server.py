"""The fork server for stubs: Triton's stub with Python and the imports of cold stages. It forks the stubs that serve.

`native/prepared.c` calls `serve` before the stub's own `main`, and passes the returned arguments to `main`.
"""

import fcntl
import os
import resource
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from sie_triton.system.processes import fork_server
from sie_triton.system.processes.fork_server import frozen_imports
from sie_triton.system.telemetry.options import OPTIONS

# Modules that the three stages import at start and with their first request. The stub itself imports asyncio, and
# importlib.metadata imports email.parser. Modules imported here are in memory once, not once per stage.
IMPORTS = (
    "asyncio",
    "email.parser",
    "sie_triton.models.inputs.text_processor",
    "sie_triton.pipeline.stages.triton",
    "sie_triton.pipeline.stages.preprocess",
    "sie_triton.pipeline.stages.inference",
    "sie_triton.pipeline.stages.postprocess",
    "tokenizers",
)

PRELOADED = "LD_PRELOAD"


def serve(directory: str) -> bytes:
    """Fork a stub for each stand-in that connects to `directory`. Returns only in the forked processes.

    Return the pid of tritonserver and the stub's arguments, each terminated by NUL.
    """
    _forget_library()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each living stub takes two descriptors.
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    given = fork_server.serve(Path(directory), lambda: prepare(directory))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    return _become(given)


def prepare(backend: str) -> None:
    """Import all modules; those of Triton are in the directory `backend`."""
    sys.path.append(backend)
    with frozen_imports():
        for name in (*IMPORTS, *["sie_triton.system.telemetry.tracing"] * OPTIONS.tracing):
            import_module(name)
        with suppress(ModuleNotFoundError):
            import_module("c_python_backend_utils")  # provided by the stub itself
    sys.path.remove(backend)
    sys.path.remove("")  # the stub puts it there itself


def _forget_library() -> None:
    """Remove our library from LD_PRELOAD: it made this process a fork server, and must not do so in other processes."""
    _, _, others = os.environ[PRELOADED].partition(os.pathsep)
    if others:
        os.environ[PRELOADED] = others
    else:
        del os.environ[PRELOADED]


def _become(descriptors: Sequence[int]) -> bytes:
    """Take over the directory and the streams of the stand-in that sent `descriptors`, and return its arguments."""
    arguments, *streams, directory, leash = descriptors
    _end_with(leash)
    os.fchdir(directory)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    with open(arguments, "rb") as file:
        given = file.read()
    for descriptor in (*streams, directory):
        os.close(descriptor)
    return given


def _end_with(leash: int) -> None:
    """Wait until the stand-in is ready. The kernel kills this process once the other end of `leash` is closed."""
    os.read(leash, 1)
    fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(leash, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC)
    look = select.poll()
    look.register(leash, 0)
    if look.poll(0):  # the other end was closed before
        os._exit(1)
