"""SIEClient: items in, typed results out, over Triton's HTTP or gRPC."""

from sie_triton.client.aio import AsyncSIEClient
from sie_triton.client.sync import SIEClient
from sie_triton.client.types import (
    Classification,
    EncodeResult,
    Entity,
    ExtractResult,
    Item,
    Object,
    Relation,
    ScoreEntry,
    ScoreResult,
    Timing,
)
from sie_triton.late_interaction import maxsim

__all__ = [
    "AsyncSIEClient",
    "Classification",
    "EncodeResult",
    "Entity",
    "ExtractResult",
    "Item",
    "Object",
    "Relation",
    "SIEClient",
    "ScoreEntry",
    "ScoreResult",
    "Timing",
    "maxsim",
]
