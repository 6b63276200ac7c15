"""Exceptions of this package, by cause, with Triton's error code or their effect.

    SIEError
      InputError     the request is invalid                   INVALID_ARG
      BusyError      the server is busy; retry                UNAVAILABLE
        Unreachable  no server answers at the address; retry  raised by clients only
      Cancelled      the client no longer waits               CANCELLED
      ModelError     the forward pass failed                  INTERNAL
        OutOfMemory  does not fit, even after splitting       UNAVAILABLE
      LoadError      the model cannot be loaded: see REASONS  UNAVAILABLE
      CatalogError   a model file or profile is invalid       start-up fails if the model was named
        UnbuiltFamily  the model file is of a kind that this version does not serve; same effect
      SettingsError  a setting is invalid                     start-up fails
      ServerError    the machine or Triton is unsuitable      start-up fails

The errors from InputError to LoadError become the response to one request and leave all other requests alone.
Their text is sent to the client: it names the field, its value and the allowed values.
"""

import re
from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "REASONS",
    "BusyError",
    "Cancelled",
    "CatalogError",
    "InputError",
    "LoadError",
    "ModelError",
    "OutOfMemory",
    "SIEError",
    "ServerError",
    "SettingsError",
    "UnbuiltFamily",
    "Unreachable",
]


class SIEError(Exception):
    """Base of all exceptions that this package raises; `code` is the name of Triton's error code."""

    code: ClassVar[str] = "INTERNAL"


class InputError(SIEError):
    code = "INVALID_ARG"


class BusyError(SIEError):
    code = "UNAVAILABLE"


class Unreachable(BusyError):
    """No server listens at the address, or it ended before it responded."""


class Cancelled(SIEError):
    code = "CANCELLED"


class ModelError(SIEError):
    code = "INTERNAL"


class OutOfMemory(ModelError):
    code = "UNAVAILABLE"


# Reasons why a model cannot be loaded; True if a retry can succeed without any intervention.
REASONS: Mapping[str, bool] = {
    "not found": False,
    "gated": False,
    "corrupt": False,
    "unsupported": False,
    "dependency": False,
    "too large": False,
    "network": True,
    "out of memory": True,
    "failed": True,
    "disk full": True,
}


class LoadError(SIEError):
    """The model cannot be loaded; `reason` is one of REASONS."""

    code = "UNAVAILABLE"

    def __init__(self, message: str, reason: str = "failed") -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def is_permanent(self) -> bool:
        return not REASONS[self.reason]

    def refusal(self, remedy: str, what: str = "the model") -> "LoadError":
        """Return the error for clients, with the reason, the details, and `remedy`: what happens or helps next."""
        return LoadError(f"{what}{_NOT_LOADED} ({self.reason}): {self}; {remedy}", self.reason)

    @classmethod
    def parse(cls, text: str) -> "LoadError | None":
        """Return the error whose `refusal` has this text; None if there is none.

        >>> LoadError.parse(str(LoadError("no such directory", "not found").refusal("put it there"))).reason
        'not found'
        """
        found = re.match(rf"(?:the model|the LoRA adapter \S+){_NOT_LOADED} \((.+?)\): ", text)
        return cls(text, found[1]) if found and found[1] in REASONS else None


_NOT_LOADED = " is not loaded"


class CatalogError(SIEError):
    code = "INVALID_ARG"


class UnbuiltFamily(CatalogError):
    """The model file is valid, but of a kind that this version does not serve."""


class SettingsError(SIEError):
    code = "INVALID_ARG"


class ServerError(SIEError):
    code = "UNAVAILABLE"
