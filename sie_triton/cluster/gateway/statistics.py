"""Triton's statistics of all workers of a pool as those of one Triton: counts and times are added up."""

from collections.abc import Iterable
from typing import Any

from tritonclient.grpc import service_pb2

# Fields that tell what a message is about.
KEYS = ("name", "version", "batch_size")


def summed(responses: Iterable[bytes]) -> bytes:
    """Return one ModelStatisticsResponse for those of several workers, serialized."""
    total = service_pb2.ModelStatisticsResponse()
    for each in responses:
        _add_all(total.model_stats, service_pb2.ModelStatisticsResponse.FromString(each).model_stats)
    data: bytes = total.SerializeToString()
    return data


def _add_all(to: Any, messages: Iterable[Any]) -> None:
    """Add messages to those of the same name, version or batch size."""
    present = {_key(each): each for each in to}
    for message in messages:
        if (found := present.get(_key(message))) is None:
            to.add().CopyFrom(message)
        else:
            _add(found, message)


def _add(to: Any, message: Any) -> None:
    for field, value in message.ListFields():
        if field.name in KEYS:
            continue
        if field.message_type is None and not isinstance(value, int):
            continue
        present = getattr(to, field.name)
        if isinstance(value, int):
            setattr(to, field.name, max(present, value) if field.name == "last_inference" else present + value)
        elif hasattr(value, "ListFields"):
            _add(present, value)
        elif hasattr(value, "add"):
            _add_all(present, value)


def _key(message: Any) -> tuple[Any, ...]:
    return tuple(getattr(message, name, None) for name in KEYS)
