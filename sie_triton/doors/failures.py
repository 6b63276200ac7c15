"""Failures of requests as HTTP responses: the code of each kind, and its status in each dialect."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sie_triton.errors import REASONS, BusyError, Cancelled, LoadError, SIEError, Unreachable

# Retry-After in seconds of the door's own failures: of a busy and of an unavailable server.
BUSY_S, AWAY_S = BusyError.retry_after_s, Unreachable.retry_after_s

# SIE's error class by reason of a LoadError.
LOAD_CLASSES: Mapping[str, str] = {
    "not found": "NOT_FOUND",
    "gated": "GATED",
    "corrupt": "CONFIG",
    "unsupported": "CONFIG",
    "dependency": "DEPENDENCY",
    "too large": "OOM",
    "network": "NETWORK",
    "out of memory": "OOM",
    "failed": "UNKNOWN",
    "disk full": "STORAGE",
}


class Row(NamedTuple):
    """SIE's error code for a kind of failure, and its status in each dialect."""

    code: str
    sie: int
    openai: int
    cohere: int
    tei: int


# By the kind of an error (`errors`), or the door's own kind. Clients of other dialects retry a busy server on 429.
TABLE: Mapping[str, Row] = {
    "input": Row("INVALID_INPUT", 400, 400, 400, 422),
    "too_long": Row("INPUT_TOO_LONG", 400, 400, 400, 422),
    "not_served": Row("MODEL_NOT_FOUND", 404, 404, 404, 424),
    "busy": Row("QUEUE_FULL", 503, 429, 429, 429),
    "out_of_memory": Row("RESOURCE_EXHAUSTED", 503, 429, 429, 429),
    "timeout": Row("DEADLINE_EXCEEDED", 504, 504, 504, 504),
    "model_loading": Row("MODEL_LOADING", 503, 503, 503, 503),
    "lora_loading": Row("LORA_LOADING", 503, 503, 503, 503),
    "endpoint_away": Row("QUEUE_FULL", 503, 502, 502, 503),
    "endpoint_busy": Row("QUEUE_FULL", 503, 503, 503, 503),
    "unreachable": Row("QUEUE_UNAVAILABLE", 503, 503, 503, 503),
    "provisioning": Row("PROVISIONING", 503, 503, 503, 503),
    "cancelled": Row("QUEUE_UNAVAILABLE", 503, 503, 503, 503),
    "model": Row("INFERENCE_ERROR", 500, 500, 500, 424),
    "internal": Row("INFERENCE_ERROR", 500, 500, 500, 424),
    **{LoadError("", reason).kind: Row("MODEL_LOAD_FAILED", 502, 502, 502, 424) for reason in REASONS},
    # the door's own
    "unauthorized": Row("UNAUTHORIZED", 401, 401, 401, 401),
    "forbidden": Row("FORBIDDEN", 403, 403, 403, 403),
    "no_route": Row("NOT_FOUND", 404, 404, 404, 404),
    "method": Row("METHOD_NOT_ALLOWED", 405, 405, 405, 405),
    "too_slow": Row("REQUEST_TIMEOUT", 408, 408, 408, 408),
    "too_large": Row("PAYLOAD_TOO_LARGE", 413, 413, 413, 413),
    "media_type": Row("INVALID_INPUT", 415, 415, 415, 415),
    "fault": Row("INTERNAL_ERROR", 500, 500, 500, 424),
}


class Failure(Exception):
    """Error response to a request. `message` is sent to the client, as one line; `kind` is a key of TABLE.

    `field` is the invalid field of the request, empty if unknown. `retry_after_s` is None if a retry does not help.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        field: str = "",
        retry_after_s: int | None = None,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.row = TABLE[kind]
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s
        self.more = more or {}
        self.headers = headers or {}

    @property
    def status(self) -> int:
        """Status in SIE's own dialect."""
        return self.row.sie


class Dialect(NamedTuple):
    """The failures that clients of a dialect expect.

    `status` chooses a column of TABLE, and `body` makes the response's JSON. `final` are more headers for statuses from
    500 on that the clients would retry although a retry does not help.
    """

    status: Callable[[Row], int]
    body: Callable[[Failure], Any]
    final: Mapping[str, str] = {}


def invalid(field: str, problem: str) -> Failure:
    return Failure("input", f"{field}: {problem}", field=field)


def failure_of(error: SIEError) -> Failure:
    """Return the failure for an error of Triton or of the client that calls it."""
    if isinstance(error, Cancelled):
        return Failure(error.kind, "the request was cancelled", retry_after_s=AWAY_S)
    more = {}
    if isinstance(error, LoadError):
        more = {"error_class": LOAD_CLASSES[error.reason], "permanent": error.is_permanent}
    message = " ".join(str(error).split())
    return Failure(error.kind, message, field=error.field, retry_after_s=error.retry_after_s, more=more)
