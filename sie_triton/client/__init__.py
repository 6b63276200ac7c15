"""Client of Triton: sends items over HTTP or gRPC and returns typed results."""

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
from sie_triton.contract.transforms.late_interaction import maxsim

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
