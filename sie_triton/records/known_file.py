"""Lists of models without ensembles in Triton, in the data directory of a server.

Known models, which the server serves once a request names them: pipeline/render/known.py → known.json → controller,
doors. Forwarded models: pipeline/render/refresh.py → forwarded.json → controller, doors.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sie_triton.system.host.files import write_atomically

FILE, FORWARDED = "known.json", "forwarded.json"


def write_known(data_dir: Path, specs: Mapping[str, str], file: str = FILE) -> None:
    """Write the ModelSpec of each model, as JSON, by the model's name."""
    write_atomically(data_dir / file, json.dumps(specs), mode=0o600)


class KnownFile:
    """Reads one of the lists again when it has changed. Any thread may call `specs`."""

    def __init__(self, data_dir: Path, file: str = FILE) -> None:
        self._path = data_dir / file
        self._read: tuple[int, Mapping[str, str] | None] = (0, None)

    def specs(self) -> Mapping[str, str] | None:
        """Return the ModelSpec of each model, as JSON, by name; None while there is no file yet."""
        with suppress(OSError, ValueError, RecursionError):
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._read[0]:
                found = json.loads(self._path.read_text())
                if isinstance(found, dict) and all(isinstance(spec, str) for spec in found.values()):
                    self._read = changed_ns, found
        return self._read[1]
