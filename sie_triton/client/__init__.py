"""SIEClient: items in, typed results out, over Triton's HTTP or gRPC."""

from sie_triton.client.aio import AsyncSIEClient
from sie_triton.client.sync import SIEClient
from sie_triton.client.types import EncodeResult, Item, ScoreEntry, ScoreResult, Timing
from sie_triton.late_interaction import maxsim

__all__ = ["AsyncSIEClient", "EncodeResult", "Item", "SIEClient", "ScoreEntry", "ScoreResult", "Timing", "maxsim"]
