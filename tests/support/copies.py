"""Files of a model's directory that say something else, in place or in a copy."""

import json
import shutil
from pathlib import Path
from typing import Any


def update(path: Path, **keys: Any) -> None:
    """Change keys of a JSON file, or write it; outer__inner is the key of an object within."""
    content = json.loads(path.read_text()) if path.exists() else {}
    for key, value in keys.items():
        outer, _, inner = key.rpartition("__")
        (content[outer] if outer else content)[inner] = value
    path.write_text(json.dumps(content))


def copy(directory: Path, to: Path, file: str = "", **keys: Any) -> Path:
    """Copy a directory into another one, and change keys of one of its JSON files."""
    shutil.copytree(directory, to, dirs_exist_ok=True)
    if file:
        update(to / file, **keys)
    return to


def reword(directory: Path, to: Path, file: str, said: str, instead: str) -> Path:
    """Copy a directory into another one, and replace what one of its files says."""
    content = (copy(directory, to) / file).read_text()
    assert said in content
    (to / file).write_text(content.replace(said, instead))
    return to
