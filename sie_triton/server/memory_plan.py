"""Estimate, before anything is started, whether the server and its models fit into the memory limit."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.families import family
from sie_triton.models.weights import locate
from sie_triton.settings import Settings
from sie_triton.settings.sources import variable
from sie_triton.system.host.container import container_memory
from sie_triton.system.host.footprint import FORKED_BYTES, limit_for, server_bytes

SETTING = variable("memory_limit_bytes")
TENSORS = "*.safetensors"


class MemoryPlan:
    """Memory limit of a server's device, in bytes; `own` of it is for the server itself, `left` for models."""

    def __init__(self, settings: Settings, num_models: int) -> None:
        self._given, self._threshold = settings.memory_limit_bytes, settings.memory_pressure_threshold_percent
        self._is_cpu = settings.runtime.device == "cpu"
        self._num_models = num_models
        self.own = server_bytes(num_models, forks_stubs=settings.fork_stubs) if self._is_cpu else 0
        self.limit, self.source = memory_limit(self._given)
        self.left = max(0, int(self.limit * self._threshold / 100) - self.own)

    def problems(self) -> Iterator[str]:
        """Yield an error if the configured limit leaves no memory for even the smallest model."""
        if self._given and self.left < FORKED_BYTES:
            needed = limit_for(self.own + FORKED_BYTES, self._threshold)
            yield (
                f"{SETTING} is {self._given}: {self._threshold:g} % of it is usable, the server itself takes about "
                f"{self.own / 1e6:.0f} MB with {self._num_models} models, and no model fits beside it; "
                f"set it to at least {needed}"
            )

    def warnings(self, specs: Sequence[ModelSpec]) -> Iterator[str]:
        """Yield a warning for each model whose local weights do not fit."""
        for spec in specs if self._is_cpu or self._given else ():
            needed = FORKED_BYTES + _weights_bytes(spec)
            if needed > self.left:
                limit = limit_for(self.own + needed, self._threshold)
                yield (
                    f"warning: {spec.model} takes at least {needed / 1e6:.0f} MB, and {self.source} leaves "
                    f"{self.left / 1e6:.0f} MB for models; it needs at least {limit}"
                )

    def line(self) -> str:
        """Return a summary of the memory of server and models; empty for a GPU, where the server takes none."""
        if not self._is_cpu:
            return ""
        return (
            f"{self.limit / 1e6:.0f} MB ({self.source}), about {self.own / 1e6:.0f} MB for the server itself, "
            f"{self.left / 1e6:.0f} MB for models"
        )


def memory_limit(given: int) -> tuple[int, str]:
    """Return the limit in bytes, and what it is of: the setting, the container, or the machine."""
    if given:
        return given, SETTING
    known = container_memory()
    return (known[1], "container") if known else (psutil.virtual_memory().total, "machine")


def _weights_bytes(spec: ModelSpec) -> int:
    """Size of the weights' files in bytes; 0 if they are not on this machine, or a remote server runs the model."""
    if spec.endpoint is not None:
        return 0
    with suppress(LoadError, OSError):
        directory = locate(spec.weights, allow_hub=False)
        patterns = (f"{spec.onnx_file}*",) if spec.onnx_file else (TENSORS, *family(spec.family).files)
        return sum(path.stat().st_size for path in _files(directory, patterns))
    return 0


def _files(directory: Path, patterns: Sequence[str]) -> set[Path]:
    return {path for pattern in patterns for path in directory.rglob(pattern) if path.is_file()}
