"""The machine's C compiler."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")


def compile_shared(sources: Sequence[Path], library: Path, *options: str) -> bool:
    """Compile `sources` into the shared library `library`; False where there is no compiler or it fails."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return False
    command = [compiler, "-shared", "-fPIC", "-std=gnu11", *options, "-o", str(library), *map(str, sources), "-lm"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
