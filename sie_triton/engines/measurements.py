"""Cached measurements of a model on this machine, in a small JSON file. Standard library only."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sie_triton.system.host.container import num_processors
from sie_triton.system.host.files import write_atomically

# Packages whose releases may change the measurements.
PACKAGES = ("sie-triton", "torch", "transformers", "flash-attn", "onnxruntime")


class Measurements:
    """Measured values by name, for one model, machine and configuration. In memory only if `path` is None.

    `redo` discards the values in the file.
    """

    def __init__(self, path: Path | None = None, *, redo: bool = False) -> None:
        self._path = path
        self._redo = redo
        self._values = self._stored()

    @classmethod
    def of(
        cls,
        cache: Path,
        model: str,
        weights: Path,
        settings: Sequence[str],
        patterns: Sequence[str] = ("*.json", "*.safetensors"),
        *,
        versions: Sequence[str] = (),
        redo: bool = False,
    ) -> "Measurements":
        """Open the measurements in `cache`, keyed by files, hardware, `settings` and `versions`.

        The files are those under `weights` that match `patterns`.
        """
        files = sorted({path for pattern in patterns for path in weights.rglob(pattern) if path.is_file()})
        facts = [f"{p.relative_to(weights)} {_content(p)}" for p in files] + [*settings, *_hardware(), *versions]
        key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
        return cls(cache / f"{model.replace('/', '__')}-{key}.json", redo=redo)

    @property
    def name(self) -> str:
        """Name of the file without its suffix, MODEL-KEY; empty if there is no file."""
        return self._path.stem if self._path else ""

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def put(self, **values: Any) -> None:
        """Add `values` and write the file, which other processes may have changed meanwhile.

        If it cannot be written, the next process measures again.
        """
        self._values = self._stored() | self._values | values
        if self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(self._values, indent=1, sort_keys=True))

    def _stored(self) -> dict[str, Any]:
        """Return the values in the file; none where they are to be discarded."""
        if self._path is not None and not self._redo:
            with suppress(OSError, ValueError, RecursionError):
                found = json.loads(self._path.read_text())
                return found if isinstance(found, dict) else {}
        return {}


def _content(path: Path) -> str:
    """Identify a JSON file by its hash, other files by their size: reading gigabytes takes longer than measuring."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".json" else str(path.stat().st_size)


def _hardware() -> list[str]:
    gpus = sorted(p.read_text() for p in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    cpu = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("model name", "flags"))}
    return [str(num_processors()), *sorted(cpu), *gpus]


def installed_versions() -> list[str]:
    """Return "name version" for each of PACKAGES that is installed in this process's environment."""
    # The import takes 3 MB, which processes that never load a model do not need.
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return found
