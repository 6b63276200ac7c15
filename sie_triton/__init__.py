"""SIE on Triton: encode, score and extract on NVIDIA Triton.

from sie_triton import Item, SIEClient

with SIEClient("http://localhost:8000") as client:
    client.encode("sentence-transformers/all-MiniLM-L6-v2", Item(text="Hello"))["dense"]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sie_triton.client import (
        AsyncSIEClient,
        Classification,
        EncodeResult,
        Entity,
        ExtractResult,
        Item,
        Object,
        Relation,
        ScoreEntry,
        ScoreResult,
        SIEClient,
        Timing,
        maxsim,
    )
    from sie_triton.errors import BusyError, InputError, LoadError, ModelError, SIEError

__all__ = [
    "AsyncSIEClient",
    "BusyError",
    "Classification",
    "EncodeResult",
    "Entity",
    "ExtractResult",
    "InputError",
    "Item",
    "LoadError",
    "ModelError",
    "Object",
    "Relation",
    "SIEClient",
    "SIEError",
    "ScoreEntry",
    "ScoreResult",
    "Timing",
    "maxsim",
]


def __getattr__(name: str) -> Any:
    # Stage processes import this package too, and must not import the client.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "sie_triton.errors" if name.endswith("Error") else "sie_triton.client"
    return getattr(import_module(module), name)
