"""GPU memory of a worker, which grows as passes of new sizes fill the library's cache."""

from collections.abc import Callable
from time import monotonic

from sie_triton.engines import Engine
from sie_triton.pipeline.limits import WorkerLimits


class DeviceBytes:
    """Reads the GPU memory of `engine` after passes; `reported` is what the stage knows, in bytes. Thread-safe."""

    def __init__(self, engine: Engine, reported: int, clock: Callable[[], float] = monotonic) -> None:
        self._engine, self._reported, self._clock = engine, reported, clock
        self._read_at = clock()

    def take_change(self) -> int:
        """Return the bytes if they have changed; 0 on a CPU, or if they were read less than `device_bytes_s` ago."""
        now = self._clock()
        if self._engine.device == "cpu" or now - self._read_at < WorkerLimits.device_bytes_s:
            return 0
        self._read_at, before = now, self._reported
        self._reported = self._engine.used_bytes()
        return 0 if self._reported == before else self._reported
