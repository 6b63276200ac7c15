"""Exceptions of this package, by cause, with their kind and Triton's error code or their effect.

    SIEError                                                 internal        INTERNAL
      InputError          the request is invalid             input           INVALID_ARG
      BusyError           the server is busy; retry          busy            UNAVAILABLE
        DeadlinePassed    the request's timeout has passed   timeout         UNAVAILABLE
        ModelLoading      the model is not in memory yet     model_loading   UNAVAILABLE
        LoraLoading       the adapter is not in memory yet   lora_loading    UNAVAILABLE
        EndpointAway      a remote endpoint does not answer  endpoint_away   UNAVAILABLE
        EndpointBusy      a remote endpoint refuses for now  endpoint_busy   UNAVAILABLE
        Unreachable       no server answers at the address   unreachable     raised by clients and gateways only
        Provisioning      no worker of a cluster is there    provisioning    raised by gateways only
      Cancelled           the client no longer waits         cancelled       CANCELLED
      ModelError          the forward pass failed            model           INTERNAL
        OutOfMemory       too large, even after splitting    out_of_memory   UNAVAILABLE
      LoadError           the model cannot be loaded         load.REASON     UNAVAILABLE
      CatalogError        a model file or profile is invalid                 start-up fails if the model was named
        UnbuiltFamily     the model file is of a kind that this version does not serve; same effect
      SettingsError       a setting is invalid                               start-up fails
      ServerError         the machine or Triton is unsuitable                start-up fails

The errors from InputError to LoadError become the response to one request and leave all other requests alone.
Their text is sent to the client: it names the field, its value and the allowed values. Programs decide by the kind,
the field and the retry time, which cross Triton in a prefix of the text (`error_prefix`); no program reads the text.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Self

__all__ = [
    "KINDS",
    "REASONS",
    "BusyError",
    "Cancelled",
    "CatalogError",
    "DeadlinePassed",
    "EndpointAway",
    "EndpointBusy",
    "InputError",
    "LoadError",
    "LoraLoading",
    "ModelError",
    "ModelLoading",
    "OutOfMemory",
    "Provisioning",
    "SIEError",
    "ServerError",
    "SettingsError",
    "UnbuiltFamily",
    "Unreachable",
    "error_of",
]


class SIEError(Exception):
    """Base of all exceptions that this package raises.

    `code` is the name of Triton's error code, `kind` the error's name for programs. `field` is the invalid input or
    parameter, empty if there is none. `retry_after_s` is None unless a retry after so many seconds may succeed.
    """

    code: ClassVar[str] = "INTERNAL"
    kind: str = "internal"
    field: str = ""
    retry_after_s: int | None = None

    def __init__(self, message: str = "", *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


class InputError(SIEError):
    code = "INVALID_ARG"
    kind = "input"

    @classmethod
    def at(cls, place: str, problem: str) -> Self:
        """Return the error for the field at `place`, with the text "PLACE: PROBLEM".

        `place` is the field, after the word "parameter" if it is one, and before a colon and details, if there are any.

        >>> error = InputError.at("parameter dimensions", "0 is not allowed")
        >>> str(error), error.field
        ('parameter dimensions: 0 is not allowed', 'dimensions')
        >>> InputError.at("entities[2]: entity 7", "needs start and end").field
        'entities[2]'
        """
        error = cls(f"{place}: {problem}")
        error.field = place.partition(":")[0].removeprefix("parameter ")
        return error


class BusyError(SIEError):
    code = "UNAVAILABLE"
    kind = "busy"
    retry_after_s = 5


class DeadlinePassed(BusyError):
    """The request's timeout has passed, or no answer came within it."""

    kind = "timeout"


class ModelLoading(BusyError):
    """The model is not in memory yet, or not any more: the timeout passed meanwhile, or the model was evicted."""

    kind = "model_loading"


class LoraLoading(BusyError):
    """The LoRA adapter is not in memory; loading it is soon done, because adapters are small."""

    kind = "lora_loading"
    retry_after_s = 1


class EndpointAway(BusyError):
    """The endpoint of a remote model does not answer."""

    kind = "endpoint_away"


class EndpointBusy(BusyError):
    """The endpoint of a remote model refuses the request for now."""

    kind = "endpoint_busy"


class Unreachable(BusyError):
    """No server listens at the address, or it ended before it responded."""

    kind = "unreachable"
    retry_after_s = 2


class Provisioning(BusyError):
    """No worker of the pool, or of the kind of machine that the request asks for, is there yet."""

    kind = "provisioning"


class Cancelled(SIEError):
    code = "CANCELLED"
    kind = "cancelled"


class ModelError(SIEError):
    code = "INTERNAL"
    kind = "model"


class OutOfMemory(ModelError):
    code = "UNAVAILABLE"
    kind = "out_of_memory"
    retry_after_s = 5


# Reasons why a model cannot be loaded, and after how many seconds a retry may succeed; None: not without intervention.
REASONS: Mapping[str, int | None] = {
    "not found": None,
    "gated": None,
    "corrupt": None,
    "unsupported": None,
    "dependency": None,
    "too large": None,
    "network": 30,
    "out of memory": 60,
    "failed": 30,
    "disk full": 60,
}


def _printable(text: str) -> str:
    """Return `text` with a space for each character that no terminal shows: parts of it come from files of others.

    >>> _printable("type: \\x1b[2J\\nname: \\u202eä")
    'type:  [2J\\nname:  ä'
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


class LoadError(SIEError):
    """The model cannot be loaded; `reason` is one of REASONS."""

    code = "UNAVAILABLE"

    def __init__(self, message: str, reason: str = "failed") -> None:
        super().__init__(_printable(message))
        self.reason = reason
        self.kind = f"load.{reason.replace(' ', '_')}"
        self.retry_after_s = REASONS[reason]

    @property
    def is_permanent(self) -> bool:
        return REASONS[self.reason] is None

    def refusal(self, remedy: str, what: str = "the model") -> "LoadError":
        """Return the error for clients, with the reason, the details, and `remedy`: what happens or helps next."""
        return LoadError(f"{what} is not loaded ({self.reason}): {self}; {remedy}", self.reason)


class CatalogError(SIEError):
    code = "INVALID_ARG"

    def __init__(self, message: str) -> None:
        super().__init__(_printable(message))


class UnbuiltFamily(CatalogError):
    """The model file is valid, but of a kind that this version does not serve."""


class SettingsError(SIEError):
    code = "INVALID_ARG"


class ServerError(SIEError):
    code = "UNAVAILABLE"


_SENT: tuple[type[SIEError], ...] = (
    *(SIEError, InputError, Cancelled, ModelError, OutOfMemory),
    *(BusyError, DeadlinePassed, ModelLoading, LoraLoading, EndpointAway, EndpointBusy, Unreachable, Provisioning),
)

# Makers of the errors that one process tells another, by kind.
KINDS: Mapping[str, Callable[[str], SIEError]] = {
    **{error.kind: error for error in _SENT},
    **{LoadError("", reason).kind: partial(LoadError, reason=reason) for reason in REASONS},
}


def error_of(kind: str, message: str, field: str = "", retry_after_s: int | None = None) -> SIEError:
    """Return the error that another process has described; SIEError for a kind that is not in KINDS.

    >>> error = error_of("load.not_found", "no such directory")
    >>> type(error).__name__, error.reason, error.retry_after_s
    ('LoadError', 'not found', None)
    """
    error = KINDS.get(kind, SIEError)(message)
    error.field, error.retry_after_s = field, retry_after_s
    return error
