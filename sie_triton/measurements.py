"""What was measured once about a model on this machine, kept in a small JSON file. Standard library only."""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# A release of one of these may change what is measured.
PACKAGES = ("sie-triton", "torch", "transformers", "flash-attn", "onnxruntime")


class Measurements:
    """Values by name for one model, one machine and one way of running it, in memory only if `path` is None.

    `redo` forgets what is there.
    """

    def __init__(self, path: Path | None = None, *, redo: bool = False) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        if path is not None and not redo:
            with suppress(OSError, ValueError):
                self._values = json.loads(path.read_text())

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
        """For the files under `weights` of these patterns, this processor or GPU, and `settings` and `versions` that
        matter."""
        files = sorted({path for pattern in patterns for path in weights.rglob(pattern) if path.is_file()})
        facts = [f"{p.relative_to(weights)} {_content(p)}" for p in files] + [*settings, *_hardware(), *versions]
        key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
        return cls(cache / f"{model.replace('/', '__')}-{key}.json", redo=redo)

    @property
    def name(self) -> str:
        """MODEL-KEY, of the file they are in; empty where there is none."""
        return self._path.stem if self._path else ""

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def put(self, **values: Any) -> None:
        """Keep `values`; a directory that cannot be written costs a measurement the next time, no more."""
        self._values |= values
        if self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                json.dump(self._values, file, indent=1, sort_keys=True)
            Path(file.name).replace(self._path)


def _content(path: Path) -> str:
    """Small files by content, weights by size: reading gigabytes would cost more than measuring."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".json" else str(path.stat().st_size)


def _hardware() -> list[str]:
    gpus = sorted(p.read_text() for p in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    cpu = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("model name", "flags"))}
    return [str(len(os.sched_getaffinity(0))), *sorted(cpu), *gpus]


def installed_versions() -> list[str]:
    """Of PACKAGES, where this process runs."""
    # 3 MB, and not needed by a process that never loads anything.
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return found
