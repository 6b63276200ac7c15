"""SIEClient: items in, typed results out, over Triton's HTTP or gRPC."""

from sie_triton.client.aio import AsyncSIEClient
from sie_triton.client.maxsim import maxsim
from sie_triton.client.sync import SIEClient
from sie_triton.client.types import EncodeResult, Item, Timing

__all__ = ["AsyncSIEClient", "EncodeResult", "Item", "SIEClient", "Timing", "maxsim"]
