"""Compiles the admission hook with the machine's C compiler."""

from pathlib import Path

from sie_triton.native import INSTALL, compile_shared

HOOK_NAME = "batchstrategy.so"
SOURCE = Path(__file__).with_name("admission.c")
NO_HOOK = (
    "warning: the admission hook cannot be compiled, so Triton batches by request count only; results are the same, "
    f"and inference still splits its batches by cost. To batch by cost in the queue too, {INSTALL}"
)


def build_hook(directory: Path) -> Path | None:
    """Compile the hook into `directory`, and return its path; None if there is no compiler or it fails."""
    hook = directory / HOOK_NAME
    return hook if compile_shared([SOURCE], hook, "-O2") else None
