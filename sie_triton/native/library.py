"""Our C as one shared library, compiled once per machine. Imports no torch."""

import ctypes
import hashlib
import tempfile
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

from sie_triton.native.compiler import compile_shared
from sie_triton.private import private_directory, temporary_directory

DIRECTORY = Path(__file__).parent
SOURCES = tuple(sorted(DIRECTORY.glob("*.c")))
OPTIONS = ("-O3", "-march=native", "-fopenmp")


@cache
def library() -> ctypes.CDLL | None:
    """None where there is no compiler, or no place to keep it that is this user's alone."""
    name = f"kernels-{_fingerprint()}.so"
    for place in (user_cache_path("sie-triton"), temporary_directory()):
        try:
            directory = private_directory(place)
            if not (directory / name).exists():
                with tempfile.TemporaryDirectory(dir=directory) as scratch:
                    if not compile_shared(SOURCES, Path(scratch) / name, *OPTIONS):
                        return None
                    (Path(scratch) / name).replace(directory / name)
            return ctypes.CDLL(str(directory / name))
        except OSError:
            continue
    return None


def _fingerprint() -> str:
    """Changes with the sources, the options and the processor."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    sources = b"".join(path.read_bytes() for path in sorted(DIRECTORY.glob("*.[ch]")))
    return hashlib.sha256(sources + repr(OPTIONS).encode() + flags.encode()).hexdigest()[:16]
