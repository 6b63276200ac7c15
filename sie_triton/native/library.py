"""Our C as one shared library, compiled once per machine. Imports no torch."""

import ctypes
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

from sie_triton.native.compiler import compile_shared

DIRECTORY = Path(__file__).parent
SOURCES = tuple(sorted(DIRECTORY.glob("*.c")))
OPTIONS = ("-O3", "-march=native", "-fopenmp")


@cache
def library() -> ctypes.CDLL | None:
    """None where there is no compiler."""
    name = f"kernels-{_fingerprint()}.so"
    for directory in (user_cache_path("sie-triton"), Path(tempfile.gettempdir()) / f"sie-triton-{os.getuid()}"):
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
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
