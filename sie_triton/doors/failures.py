"""Failures of requests as HTTP responses: a status, SIE's error code, and when to retry."""

from collections.abc import Mapping
from typing import Any

from sie_triton.client.failures import NotServed
from sie_triton.errors import BusyError, Cancelled, InputError, LoadError, SIEError, Unreachable

# Retry-After in seconds, while a model is loaded, while an adapter is loaded (which is small), and for a busy or
# unavailable server.
LOADING_S, LORA_LOADING_S, BUSY_S, AWAY_S = 5, 1, 5, 2

# SIE's error class and Retry-After in seconds by reason of a LoadError; None: a retry alone does not help.
LOAD_CLASSES: Mapping[str, tuple[str, int | None]] = {
    "not found": ("NOT_FOUND", None),
    "gated": ("GATED", None),
    "dependency": ("DEPENDENCY", None),
    "out of memory": ("OOM", 60),
    "network": ("NETWORK", 30),
    "disk full": ("DISK_FULL", 60),
    "failed": ("UNKNOWN", 30),
}


class Failure(Exception):
    """Error response to a request. `message` is sent to the client, as one line.

    `retry_after_s` is None if a retry does not help.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_s: int | None = None,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.more = more or {}
        self.headers = headers or {}

    @property
    def field(self) -> str:
        """Invalid field of the request, taken from the message; empty if unknown.

        >>> Failure(400, "INVALID_INPUT", "items[3].text: must be a string").field, Failure(500, "X", "it broke").field
        ('items[3].text', '')
        """
        name, colon, _ = self.message.partition(":")
        return name.removeprefix("parameter ") if colon and self.status == 400 else ""


def invalid(message: str) -> Failure:
    return Failure(400, "INVALID_INPUT", message)


def failure_of(error: SIEError) -> Failure:
    """Return the failure for an error of Triton or of the client that calls it."""
    message = " ".join(str(error).split())
    if isinstance(error, NotServed):
        return Failure(404, "MODEL_NOT_FOUND", message)
    if isinstance(error, InputError):
        return invalid(message)
    if isinstance(error, LoadError):
        return _not_loaded(error, message)
    if isinstance(error, Unreachable):
        return Failure(503, "SERVER_UNAVAILABLE", message, retry_after_s=AWAY_S)
    if isinstance(error, BusyError):
        return _busy(message)
    if isinstance(error, Cancelled):
        return Failure(503, "SERVER_UNAVAILABLE", "the request was cancelled", retry_after_s=AWAY_S)
    return Failure(500, "INFERENCE_ERROR", message)


def _not_loaded(error: LoadError, message: str) -> Failure:
    name, seconds = LOAD_CLASSES.get(error.reason, ("UNKNOWN", None))
    more = {"error_class": name, "permanent": error.is_permanent}
    return Failure(502, "MODEL_LOAD_FAILED", message, retry_after_s=seconds, more=more)


def _busy(message: str) -> Failure:
    if message.startswith("lora ") and "is being loaded" in message:
        return Failure(503, "LORA_LOADING", message, retry_after_s=LORA_LOADING_S)
    if "while the model is being loaded" in message or "was evicted while" in message:
        return Failure(503, "MODEL_LOADING", message, retry_after_s=LOADING_S)
    if message.startswith("timeout:"):
        return Failure(504, "DEADLINE_EXCEEDED", message, retry_after_s=BUSY_S)
    soon = 1 if message.endswith("retry in half a second") else BUSY_S
    return Failure(503, "RESOURCE_EXHAUSTED", message, retry_after_s=soon)
