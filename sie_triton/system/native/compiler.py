"""The machine's C compiler."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sie_triton.system.native.builds import Build, Level

COMPILERS = ("cc", "gcc", "clang")
INSTALL = "install a C compiler with its headers (Debian, Ubuntu: apt install gcc libc6-dev)"


def compile_build(build: Build, level: Level, output: Path) -> bool:
    """Compile `build` for the processors of `level`; return False if there is no compiler or it fails."""
    compile_file = compile_program if build.is_program else compile_shared
    return compile_file(build.sources, output, *build.options, *level.options)


def compile_shared(sources: Sequence[Path], library: Path, *options: str) -> bool:
    """Compile `sources` into the shared library `library`; return False if there is no compiler or it fails."""
    return _compile(sources, library, "-shared", "-fPIC", *options)


def compile_program(sources: Sequence[Path], program: Path, *options: str) -> bool:
    """Compile `sources` into `program`, statically linked if possible; return False as `compile_shared` does."""
    return _compile(sources, program, "-static", *options) or _compile(sources, program, *options)


def _compile(sources: Sequence[Path], output: Path, *options: str) -> bool:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return False
    command = [compiler, "-std=gnu11", *options, "-o", str(output), *map(str, sources), "-lm", "-ldl"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
