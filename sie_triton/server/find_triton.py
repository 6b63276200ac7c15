"""The tritonserver to run, and the environment that its Python stubs need."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import sie_triton
from sie_triton.errors import ServerError
from sie_triton.server.preflight import no_libpython, shared_libpython
from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.freed_memory import LARGE_BLOCKS

NGC_ROOT = Path("/opt/tritonserver")


@dataclass(frozen=True, slots=True)
class Triton:
    """A tritonserver, its backends, and the environment to start it in."""

    binary: Path
    backend_directory: Path
    environment: dict[str, str]
    embedded: bool


def find_triton(binary: Path | None, data_dir: Path) -> Triton:
    """Return the configured tritonserver, else NGC's, else the embedded one; raise ServerError if there is none."""
    ngc = binary or NGC_ROOT / "bin" / "tritonserver"
    if ngc.is_file():
        ngc = ngc.absolute()
        return Triton(ngc, ngc.parents[1] / "backends", {**LARGE_BLOCKS, **os.environ}, embedded=False)
    if binary is not None:
        raise ServerError(f"tritonserver: {binary} does not exist; leave the setting out to use the embedded one")
    return _embedded(data_dir)


def _embedded(data_dir: Path) -> Triton:
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ServerError("no tritonserver found; pip install 'sie-triton[embedded]' installs one")
    root = Path(spec.origin).parent / "tritonserver"
    backends = data_dir / "backends"
    _compose_python_backend(root, backends / "python")
    return Triton(root / "bin" / "tritonserver", backends, stub_environment(), embedded=True)


def _compose_python_backend(root: Path, target: Path) -> None:
    """Link the backend and the stub of this Python version into one directory, as Triton requires."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise ServerError(f"the embedded Triton has no stub for Python {version}; use 3.11 or 3.12")
    target.mkdir(parents=True, exist_ok=True)
    backend = root / "backends" / "python"
    for source in (backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub):
        link = target / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source)


def stage_directory(data_dir: Path) -> Path:
    """Return tritonserver's working directory, which its stubs search first for imports.

    It holds only this package, and nothing that another user put into the directory a server was started from.
    """
    directory = private_directory(data_dir / "python")
    link = directory / sie_triton.__name__
    link.unlink(missing_ok=True)
    link.symlink_to(Path(sie_triton.__file__).parent)
    return directory


def stub_environment() -> dict[str, str]:
    """Return the environment in which a stub finds packages, by python3 on PATH, and libpython, by the loader."""
    library = shared_libpython()
    if library is None:
        raise ServerError(no_libpython())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    loader = os.pathsep.join(filter(None, [str(library), os.environ.get("LD_LIBRARY_PATH")]))
    return {**LARGE_BLOCKS, **os.environ, "PATH": path, "LD_LIBRARY_PATH": loader}


ASCII = re.compile(r"[\w@%+=,./-]+", re.ASCII)


@contextmanager
def ascii_path(path: Path) -> Iterator[Path]:
    """Yield `path` itself if Triton's Python backend can use it, else a link to it that only this user can reach.

    The backend puts paths unquoted into a shell command, its stubs accept only ASCII, and a colon separates libraries
    that a program loads first.
    """
    if ASCII.fullmatch(str(path)):
        yield path
        return
    usual = ASCII.fullmatch(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="sie-triton-", dir=None if usual else "/tmp") as directory:
        link = Path(directory) / "data"
        link.symlink_to(path)
        yield link
