"""What can go wrong, and whose fault it is.

    SIEError
      InputError     the request is wrong                     INVALID_ARG
      BusyError      the server cannot take it now; retry     UNAVAILABLE
        Unreachable  nobody answers at its address; retry     raised by clients only
      Cancelled      nobody waits for the answer              CANCELLED
      ModelError     the forward pass failed                  INTERNAL
        OutOfMemory  it does not fit, cut smaller neither     UNAVAILABLE
      LoadError      the model cannot be loaded: see REASONS  UNAVAILABLE
      CatalogError   a model file or profile is wrong         start-up fails, where the model was asked for
        UnbuiltFamily  this version does not serve its kind   the same
      SettingsError  a setting is wrong                       start-up fails
      ServerError    the machine or Triton is not fit         start-up fails

Those down to LoadError become the error of one response and leave every other request alone.
Their text goes to the client: it names the field, what was given and what is allowed.
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
    """Base of every error this package raises; `code` is Triton's name for it."""

    code: ClassVar[str] = "INTERNAL"


class InputError(SIEError):
    code = "INVALID_ARG"


class BusyError(SIEError):
    code = "UNAVAILABLE"


class Unreachable(BusyError):
    """No server is there, or it ended before it answered."""


class Cancelled(SIEError):
    code = "CANCELLED"


class ModelError(SIEError):
    code = "INTERNAL"


class OutOfMemory(ModelError):
    code = "UNAVAILABLE"


# Why a model cannot be loaded, and whether trying again could help without somebody doing something first.
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
    """`reason` is one of REASONS."""

    code = "UNAVAILABLE"

    def __init__(self, message: str, reason: str = "failed") -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def is_permanent(self) -> bool:
        return not REASONS[self.reason]

    def refusal(self, remedy: str, what: str = "the model") -> "LoadError":
        """What clients are told: the reason, the details, and what happens next."""
        return LoadError(f"{what}{_NOT_LOADED} ({self.reason}): {self}; {remedy}", self.reason)

    @classmethod
    def parse(cls, text: str) -> "LoadError | None":
        """The error that `refusal` made this text of.

        >>> LoadError.parse(str(LoadError("no such directory", "not found").refusal("put it there"))).reason
        'not found'
        """
        found = re.match(rf"(?:the model|the LoRA adapter \S+){_NOT_LOADED} \((.+?)\): ", text)
        return cls(text, found[1]) if found and found[1] in REASONS else None


_NOT_LOADED = " is not loaded"


class CatalogError(SIEError):
    code = "INVALID_ARG"


class UnbuiltFamily(CatalogError):
    """Raised for a model file that is right, of a kind that this version does not serve."""


class SettingsError(SIEError):
    code = "INVALID_ARG"


class ServerError(SIEError):
    code = "UNAVAILABLE"
