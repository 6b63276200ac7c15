"""Messages between gateways and sidecars: a header in msgpack, then the bytes of Triton's own protobuf, unchanged."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import isfinite
from typing import Any, Self, get_args, get_origin

import msgpack  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from sie_triton.errors import SIEError

log = logging.getLogger(__name__)

# Statuses of answers: gRPC's status codes (https://grpc.io/docs/guides/status-codes).
OK, CANCELLED, INVALID, DEADLINE_EXCEEDED, NOT_FOUND, INTERNAL, UNAVAILABLE = 0, 1, 3, 4, 5, 13, 14

# Version of the header. A reader refuses others.
VERSION = 1

# Largest header of an answer, in bytes: its text is cut to MAX_TEXT characters.
MAX_HEADER_BYTES, MAX_TEXT = 16 * 1024, 3000

# Longest interval of heartbeats, in seconds.
MAX_INTERVAL_S = 60.0


class Malformed(SIEError):
    """A message that no version of this package has written."""


@dataclass(frozen=True, slots=True)
class Header:
    """Base of headers, which are written as a list: the version, then the fields in order."""

    def packed(self, body: bytes = b"") -> bytes:
        """Return the message of this header and `body`."""
        head: bytes = msgpack.packb((VERSION, *[getattr(self, name) for name, _ in self._fields()]))
        return len(head).to_bytes(4, "little") + head + body

    @classmethod
    def read(cls, message: bytes) -> tuple[Self, bytes]:
        """Return header and body; Malformed if it is not such a message."""
        try:
            size = int.from_bytes(message[:4], "little")
            version, *values = msgpack.unpackb(message[4 : 4 + size])
            own_fields = cls._fields()
            if version != VERSION or len(values) != len(own_fields):
                raise ValueError(f"version {version} with {len(values)} fields")
            for value, (name, kind) in zip(values, own_fields, strict=True):
                if not _fits(value, kind):
                    raise TypeError(f"{name} is not a {kind}")
            return cls(*values), message[4 + size :]
        except (ValueError, TypeError, msgpack.UnpackException) as exc:
            raise Malformed(f"not a message of this version: {exc}") from exc

    @classmethod
    @cache
    def _fields(cls) -> Sequence[tuple[str, Any]]:
        """Return name and type of each field."""
        return [(field.name, field.type) for field in fields(cls)]


def _fits(value: Any, kind: Any) -> bool:
    """Return True if `value`, as msgpack gives it, is of the type `kind` throughout; floats must be finite.

    >>> _fits([1, 2.5], Sequence[float]), _fits({"a": ["b"]}, Mapping[str, str]), _fits(float("nan"), float)
    (True, False, False)
    """
    if kind is float:
        return type(value) in (int, float) and isfinite(value)
    if type(value) is kind:
        return True
    parts = get_args(kind)
    if get_origin(kind) is Sequence:
        return isinstance(value, list) and all(_fits(each, parts[0]) for each in value)
    if get_origin(kind) is Mapping:
        return isinstance(value, dict) and all(_fits(pair, parts) for pair in value.items())
    return isinstance(kind, tuple) and all(map(_fits, value, kind))


@dataclass(frozen=True, slots=True)
class Work(Header):
    """A request in the queue. Its body is a ModelInferRequest.

    `number` identifies it among those of its gateway. `deadline` is in seconds of the Unix epoch. `num_deaths` counts
    the Tritons that ended while they ran it. `payload` names the body in the payload store, if it is there. `tenant` is
    the client by its token.
    """

    gateway: str
    number: int
    deadline: float
    model: str
    num_deaths: int = 0
    payload: str = ""
    tenant: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.gateway, self.number


@dataclass(frozen=True, slots=True)
class Answer(Header):
    """The answer to a Work or a Question, or one part of it. Its body is Triton's response, empty if it failed.

    `receipt` is the subject that acknowledges the work; by it the gateway knows what to delete from the stream once it
    has all parts. `status` and `text` are those of gRPC. `waited_ms` is the time from the sidecar's reception to the
    call of Triton.
    """

    number: int
    worker: str
    status: int = OK
    text: str = ""
    waited_ms: float = 0.0
    receipt: str = ""
    part: int = 0
    num_parts: int = 1

    def parts(self, body: bytes, max_bytes: int) -> Iterator[bytes]:
        """Yield the messages of this answer, each of at most `max_bytes`."""
        room = max_bytes - MAX_HEADER_BYTES
        num_parts = max(1, -(-len(body) // room))
        for part in range(num_parts):
            header = replace(self, text=self.text[:MAX_TEXT], part=part, num_parts=num_parts)
            yield header.packed(body[part * room : (part + 1) * room])


def clock_in(heartbeat: bytes) -> float | None:
    """Return the time that a gateway tells in its heartbeat, in seconds of the Unix epoch; None if it is none.

    >>> clock_in(b"1795918188.137359"), clock_in(b"{}"), clock_in(b"inf")
    (1795918188.137359, None, None)
    """
    try:
        number = float(heartbeat[:32])
    except ValueError:
        return None
    return number if isfinite(number) else None


def unknown_model(name: str) -> str:
    """Return Triton's own error text for a model that it does not serve."""
    return f"Request for unknown model: '{name}' is not found"


# The question whether the server knows a model, by its name in Triton, and will serve it. Its controller answers.
SERVE_KNOWN = "ServeKnown"


@dataclass(frozen=True, slots=True)
class Question(Header):
    """A call of Triton other than inference, which any worker of a pool can answer. Its body is the request."""

    method: str


@dataclass(frozen=True, slots=True)
class Cancel(Header):
    """The client of a Work no longer waits."""

    gateway: str
    number: int


@dataclass(frozen=True, slots=True)
class Wanted(Header):
    """Requests wait for this model; `num_waiting` of them at one gateway, besides those in the stream."""

    model: str
    num_waiting: int = 0


@dataclass(frozen=True, slots=True)
class Health(Header):
    """Heartbeat of a sidecar.

    `models` are the names of the models that its Triton serves, as `org__name`, and `ensembles` those of their tasks'
    own ensembles. `resident` maps models in memory to (bytes, seconds since the last use). `free_bytes` is what one
    model can get without an eviction. `open` is the number of requests at its Triton, of at most `limit`.
    `claims` are the models whose work it fetches. `epoch` is that of the model files that it has applied, but for those
    of `refused`, which its server does not take. `moves_to` is the pool to which it goes once it has finished its work.
    `interval_s` is the setting for the time between two heartbeats, in seconds; on full cores it takes up to twice.
    `gpu_count` is the number of GPUs that the worker reports.
    """

    worker: str
    pool: str
    profile: str
    is_ready: bool
    models: Sequence[str]
    ensembles: Sequence[str]
    resident: Mapping[str, Sequence[float]]
    free_bytes: int
    open: int
    limit: int
    claims: Sequence[str] = ()
    gpu_type: str = ""
    epoch: int = 0
    refused: Sequence[str] = ()
    moves_to: str = ""
    interval_s: float = 1.0
    gpu_count: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.interval_s <= MAX_INTERVAL_S:
            raise ValueError(f"interval_s: must be above 0 and at most {MAX_INTERVAL_S:g}")
        if any(len(size_and_age) != 2 for size_and_age in self.resident.values()):
            raise ValueError("resident: must give two numbers for each model")


@dataclass(frozen=True, slots=True)
class Lease(Header):
    """A pool that a client has leased: `gpus` workers of each kind of machine, which come from the pool `source`.

    `caps` are the most that it may have of a kind, by default those of `gpus`. `minimum` is the number that should be
    kept running. `at` and `renewed_at` are in seconds of the Unix epoch.
    """

    name: str
    source: str
    gpus: Mapping[str, int]
    caps: Mapping[str, int]
    minimum: int
    at: float
    renewed_at: float

    def renewed(self, **more: Any) -> "Lease":
        return replace(self, renewed_at=time.time(), **more)


def read_lease(value: bytes) -> Lease | None:
    """Return the lease of an entry of the queue's bucket; None for one that is no lease."""
    try:
        return Lease.read(value)[0]
    except Malformed as exc:
        log.warning("leases: %s", exc)
        return None


def with_parameters(request: bytes, parameters: Mapping[str, Any]) -> bytes:
    """Return a serialized ModelInferRequest with these parameters in place of its own of these names.

    Protobuf joins messages that follow one another, and the last value of a map's key wins.
    """
    more = service_pb2.ModelInferRequest()
    for name, value in parameters.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(more.parameters[name], kind, value)
    added: bytes = more.SerializeToString()
    return request + added
