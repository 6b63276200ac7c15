"""What can go wrong, and whose fault it is.

    SIEError
      InputError     the request is wrong                     INVALID_ARG
      BusyError      the server cannot take it now; retry     UNAVAILABLE
      Cancelled      nobody waits for the answer              CANCELLED
      ModelError     the forward pass failed                  INTERNAL
        OutOfMemory  it does not fit, cut smaller neither     UNAVAILABLE
      LoadError      weights missing, gated or corrupt        UNAVAILABLE
      CatalogError   a model file or profile is wrong         start-up fails
      SettingsError  a setting is wrong                       start-up fails
      ServerError    the machine or Triton is not fit         start-up fails

Those down to LoadError become the error of one response and leave every other request alone.
Their text goes to the client: it names the field, what was given and what is allowed.
"""

from typing import ClassVar

__all__ = [
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
]


class SIEError(Exception):
    """Base of every error this package raises; `code` is Triton's name for it."""

    code: ClassVar[str] = "INTERNAL"


class InputError(SIEError):
    code = "INVALID_ARG"


class BusyError(SIEError):
    code = "UNAVAILABLE"


class Cancelled(SIEError):
    code = "CANCELLED"


class ModelError(SIEError):
    code = "INTERNAL"


class OutOfMemory(ModelError):
    code = "UNAVAILABLE"


class LoadError(SIEError):
    code = "UNAVAILABLE"


class CatalogError(SIEError):
    code = "INVALID_ARG"


class SettingsError(SIEError):
    code = "INVALID_ARG"


class ServerError(SIEError):
    code = "UNAVAILABLE"
