"""The known models of a server: those that it serves once a request names them. `known.json` in its data directory.

pipeline/render/known.py → known.json → controller, doors
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FILE = "known.json"


def write_known(data_dir: Path, specs: Mapping[str, str]) -> None:
    """Write the ModelSpec of each known model, as JSON, by the model's name."""
    fresh = data_dir / f"{FILE}.{os.getpid()}"
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(specs))
    fresh.replace(data_dir / FILE)


class KnownFile:
    """Reads known.json again when it has changed. Any thread may call `specs`."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE
        self._read: tuple[int, Mapping[str, str] | None] = (0, None)

    def specs(self) -> Mapping[str, str] | None:
        """Return the ModelSpec of each known model, as JSON, by name; None while there is no file yet."""
        with suppress(OSError, ValueError, RecursionError):
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._read[0]:
                found = json.loads(self._path.read_text())
                if isinstance(found, dict) and all(isinstance(spec, str) for spec in found.values()):
                    self._read = changed_ns, found
        return self._read[1]
