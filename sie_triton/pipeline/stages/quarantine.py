"""Requests that ended two workers: refused for a while, so that a client that repeats one does not end others."""

import json
from collections.abc import Callable
from hashlib import blake2b
from threading import Lock
from time import monotonic

from sie_triton.errors import ModelError
from sie_triton.pipeline.scheduling.job import Job

# Seconds for which the same request is refused. The cause may have been something else, so it is tried again then.
REFUSED_S = 60.0

# Maximum number of requests that are remembered; beyond it, the oldest is forgotten.
MAX_KNOWN = 256

ENDED_TWICE = "inference: the worker process ended twice while it computed this request"


class Quarantine:
    """Hashes of such requests, by what their pass reads, and when each may run again. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._until: dict[bytes, float] = {}

    def add(self, job: Job) -> ModelError:
        """Refuse `job` from now on; return the error of this time."""
        with self._lock:
            self._until[_hash_of(job)] = self._clock() + REFUSED_S
            while len(self._until) > MAX_KNOWN:
                del self._until[next(iter(self._until))]
        return ModelError(ENDED_TWICE)

    def check(self, job: Job) -> None:
        """Raise ModelError if `job` is refused. Nothing is hashed while none is."""
        if self._until and self._clock() < self._until.get(_hash_of(job), 0.0):
            raise ModelError(f"{ENDED_TWICE}, less than {REFUSED_S:g} s ago")


def _hash_of(job: Job) -> bytes:
    read = [sorted(job.wanted), list(map(bool, job.is_query)), job.lora, job.options]
    digest = blake2b(json.dumps(read, sort_keys=True, default=str).encode())
    for name, ragged in sorted(job.features.items()):
        for array in ragged:
            if array is not None:
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
    return digest.digest()
