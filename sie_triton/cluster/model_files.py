"""Model files in the queue: a bucket that the config service writes, and that gateways and sidecars follow.

    token of the pool . token of the model → a version of the model's file

The bucket is the log of all changes: a change is one write, and its revision is the *epoch* of the cluster. The bucket
keeps the last 64 versions of each file.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

from sie_triton.cluster import subjects
from sie_triton.cluster.messages import Header, Malformed
from sie_triton.contract.names import triton_name

log = logging.getLogger(__name__)

# Pool of the files that are for the workers of all pools. No pool has this name.
ALL_POOLS = ""


@dataclass(frozen=True, slots=True)
class Version(Header):
    """Header of a version of a model's file, whose body is the file; an empty body means that the model is removed.

    `pool` may be ALL_POOLS. `at` is in seconds of the Unix epoch. `request` is the client's Idempotency-Key.
    """

    model: str
    pool: str
    producer: str
    at: float
    request: str = ""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A version of a model's file. `text` is empty if the model is removed."""

    version: Version
    text: bytes

    @property
    def is_removed(self) -> bool:
        return not self.text

    @property
    def digest(self) -> str:
        return sha256(self.text).hexdigest()

    def packed(self) -> bytes:
        return self.version.packed(self.text)


def reader(producers: Collection[str]) -> Callable[[bytes], ModelFile | None]:
    """Return a function that reads entries of the bucket; it returns None for those of other producers."""

    def read(value: bytes) -> ModelFile | None:
        try:
            version, text = Version.read(value)
        except Malformed as exc:
            log.warning("model files: %s", exc)
            return None
        if version.producer not in producers:
            log.warning("model files: %s is not in SIE_NATS_CONFIG_TRUSTED_PRODUCERS", version.producer[:80])
            return None
        return ModelFile(version, text)

    return read


def key(pool: str, model: str) -> str:
    """Return the key of a model's file in the bucket, by SIE's name of the model.

    >>> key(ALL_POOLS, "BAAI/bge-m3"), key("gpu", "BAAI/bge-m3")
    ('=.BAAI__bge-m3', 'gpu.BAAI__bge-m3')
    """
    return f"{pool or '='}.{subjects.token(triton_name(model))}"


def of_pool(files: Mapping[str, ModelFile], pool: str) -> dict[str, ModelFile]:
    """Return the files for the workers of a pool, by Triton's name of the model.

    A file for this pool has precedence over one for all pools. A model that was removed has an empty file.
    """
    found: dict[str, ModelFile] = {}
    for file in files.values():
        if file.version.pool in (ALL_POOLS, pool):
            name = triton_name(file.version.model)
            found[name] = max(file, found.get(name, file), key=_precedence)
    return found


def _precedence(file: ModelFile) -> tuple[bool, bool]:
    return not file.is_removed, file.version.pool != ALL_POOLS
