"""Load our C code: the wheel's file for this processor, or else one compiled once on this machine. Imports no torch."""

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sie_triton.system.host.private import private_directory, temporary_directory
from sie_triton.system.host.speed import processor_flags
from sie_triton.system.native.builds import (
    BUILT,
    GENERIC,
    INSTALL,
    KERNELS,
    OPENMP,
    PACKAGE,
    Build,
    Level,
    compile_build,
)

PRELOAD = "LD_PRELOAD"


class Loaded(NamedTuple):
    """A library, and where it is from, in words."""

    library: ctypes.CDLL
    origin: str


def library(build: Build) -> ctypes.CDLL | None:
    """Return the library.

    None if the wheel has none for this processor, and there is no compiler, or no directory to store what it compiles
    that only this user can write.
    """
    loaded = _load(build)
    return loaded and loaded.library


def kernels_in_use(device: str) -> str | None:
    """Return in words which of our kernels models on `device` use; None on a GPU. The first call may compile them."""
    if device != "cpu":
        return None
    loaded = _load(KERNELS)
    return loaded.origin if loaded else f"none, so PyTorch's own are used, which are slower; {INSTALL}"


def put(build: Build, output: Path) -> bool:
    """Copy the wheel's file to `output`, or compile it there; return False if neither is possible.

    Return False, without a file, if no code may run from there: the file system is mounted noexec.
    """
    found = next(build.candidates(PACKAGE / BUILT, processor_flags()), None)
    if found is not None:
        shutil.copyfile(found[1], output)
        output.chmod(0o755)
    elif not compile_build(build, GENERIC, output):
        return False
    if not (may_run := os.access(output, os.X_OK)):
        output.unlink()
    return may_run


def preloading(library: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` for a program that loads `library` first; its path holds neither a space nor a colon."""
    return {**environment, PRELOAD: ":".join(filter(None, [str(library), environment.get(PRELOAD)]))}


@cache
def _load(build: Build) -> Loaded | None:
    if OPENMP[-1] in build.options:
        _load_openmp()
    for path, origin in _files(build):
        with suppress(OSError):
            return Loaded(ctypes.CDLL(str(path)), origin)
    return None


def _load_openmp() -> None:
    """Load PyTorch's OpenMP library, whose threads our kernels share, or else the system's."""
    torch = find_spec("torch")
    own = Path(torch.origin).parent.glob("lib/libgomp*") if torch and torch.origin else ()
    for name in (*map(str, own), "libgomp.so.1"):
        with suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return


def _files(build: Build) -> Iterator[tuple[Path, str]]:
    """Yield the files to try, and where each is from."""
    for level, path in build.candidates(PACKAGE / BUILT, processor_flags()):
        yield path, f"{level.name}, from the wheel"
    for place in _places():
        with suppress(OSError):
            path = private_directory(place) / build.file_name(this_processor())
            if path.exists() or _compile(build, this_processor(), path):
                yield path, "compiled on this machine"


def this_processor() -> Level:
    return Level("native", ("-march=native",), processor_flags())


def _compile(build: Build, level: Level, output: Path) -> bool:
    """Compile into a scratch directory first, so that no other process sees an unfinished file."""
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        made = Path(scratch) / output.name
        if not compile_build(build, level, made):
            return False
        made.replace(output)
    return True


def _places() -> list[Path]:
    """Directories that may hold the compiled library, the preferred one first."""
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:  # only the client, or gpu-check without this package's requirements
        return [temporary_directory()]
    return [user_cache_path("sie-triton"), temporary_directory()]
