"""Names of the files of a model."""

import os
from pathlib import Path, PurePosixPath


def listing(directory: Path) -> list[str]:
    """Return all files below `directory`, relative to it, except those in hidden directories."""
    found = []
    for root, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(".")]
        relative = Path(root).relative_to(directory)
        found += [str(PurePosixPath(relative / name)) for name in files]
    return found
