"""The compiled admission hook."""

from pathlib import Path

from sie_triton.system.native.builds import HOOK, INSTALL
from sie_triton.system.native.loading import put

HOOK_NAME = "batchstrategy.so"
NO_HOOK = (
    "warning: the admission hook cannot be compiled, or the data directory is mounted noexec, so Triton batches by "
    "request count only; results are the same, and inference still splits its batches by cost. To batch by cost in the "
    f"queue too, {INSTALL}, or set SIE_DATA_DIR to a directory where programs may run"
)


def build_hook(directory: Path) -> Path | None:
    """Put the hook into `directory`, and return its path; None if it cannot be compiled, or not run."""
    hook = directory / HOOK_NAME
    return hook if put(HOOK, hook) else None
