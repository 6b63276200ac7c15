"""Builds the admission hook with the machine's C compiler."""

import shutil
import subprocess
from pathlib import Path

HOOK_NAME = "batchstrategy.so"
SOURCE = Path(__file__).with_name("admission.c")
COMPILERS = ("cc", "gcc", "clang")


def build_hook(directory: Path) -> Path | None:
    """Compile the hook into `directory`; None where there is no compiler or it fails."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    hook = directory / HOOK_NAME
    command = [compiler, "-O2", "-shared", "-fPIC", "-std=gnu11", "-o", str(hook), str(SOURCE)]
    return hook if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None
