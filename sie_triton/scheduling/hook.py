"""Builds the admission hook with the machine's C compiler."""

from pathlib import Path

from sie_triton.native import compile_shared

HOOK_NAME = "batchstrategy.so"
SOURCE = Path(__file__).with_name("admission.c")


def build_hook(directory: Path) -> Path | None:
    """Compile the hook into `directory`; None where there is no compiler or it fails."""
    hook = directory / HOOK_NAME
    return hook if compile_shared([SOURCE], hook, "-O2") else None
