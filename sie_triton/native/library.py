"""Build a directory of C files as one shared library, once per machine. Imports no torch."""

import ctypes
import hashlib
import tempfile
from functools import cache
from pathlib import Path

from sie_triton.host.private import private_directory, temporary_directory
from sie_triton.native.compiler import compile_shared

OPTIONS = ("-O3", "-march=native", "-fopenmp")


@cache
def library(directory: Path) -> ctypes.CDLL | None:
    """Return the library of the sources in `directory`.

    None if there is no compiler, or no directory to store it that only this user can write.
    """
    name = f"{directory.parent.name}-{_fingerprint(directory)}.so"
    for place in _places():
        try:
            home = private_directory(place)
            if not (home / name).exists():
                with tempfile.TemporaryDirectory(dir=home) as scratch:
                    if not compile_shared(sorted(directory.glob("*.c")), Path(scratch) / name, *OPTIONS):
                        return None
                    (Path(scratch) / name).replace(home / name)
            return ctypes.CDLL(str(home / name))
        except OSError:
            continue
    return None


def _places() -> list[Path]:
    """Directories that may hold the library, the preferred one first."""
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:  # only the client, or gpu-check without this package's requirements
        return [temporary_directory()]
    return [user_cache_path("sie-triton"), temporary_directory()]


def _fingerprint(directory: Path) -> str:
    """Return a hash of the sources, the compiler options and the processor's features."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    sources = b"".join(path.read_bytes() for path in sorted(directory.glob("*.[ch]")))
    return hashlib.sha256(sources + repr(OPTIONS).encode() + flags.encode()).hexdigest()[:16]
