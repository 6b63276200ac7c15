"""Convert an endpoint's error responses to our errors. Pure."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from sie_triton.engines.remote.limits import LIMITS
from sie_triton.errors import EndpointBusy, InputError, LoadError, ModelError, SIEError

# Statuses: the endpoint may succeed later; the request is invalid; the model cannot be used (with our reason).
BUSY = (408, 425, 429, 502, 503, 504)
WRONG = (400, 413, 422)
CLOSED = {401: "gated", 403: "gated", 404: "not found", 405: "not found"}

REMEDIES = {
    "gated": "set endpoint.api_key_env in the model file, and that environment variable for the server",
    "not found": "check endpoint.url and endpoint.model in the model file",
}


def failure(where: str, status: int, retry_after: str, body: bytes) -> SIEError:
    """Return the error for a response; `where` is the URL of the request, `retry_after` the Retry-After header."""
    told = error_message(body)
    line = f"{where}: answers {status}" + (f", {told}" if told else "")
    if status in BUSY:
        seconds = retry_s(retry_after)
        return EndpointBusy(f"{line}; retry in {seconds} s", retry_after_s=seconds)
    if status in WRONG:
        return InputError(line)
    if reason := CLOSED.get(status):
        return LoadError(f"{line}; {REMEDIES[reason]}", reason)
    if 300 <= status < 400:
        return LoadError(f"{line}; redirects are not followed; correct endpoint.url", "unsupported")
    return ModelError(line)


def error_message(body: bytes) -> str:
    """Return the message in an error's JSON as one line; empty if the body is not JSON.

    >>> error_message(b'{"error": {"message": "too long", "code": 400}}')
    'too long'
    >>> error_message(b'{"detail": "no"}'), error_message(b"<html>")
    ('no', '')
    """
    try:
        found: Any = orjson.loads(body)
    except ValueError:
        return ""
    for key in ("error", "message", "detail"):
        if isinstance(found, dict):
            found = found.get(key, found)
    text = found if isinstance(found, str) else orjson.dumps(found).decode()
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * LIMITS.max_message_characters])
    return " ".join(printable.split())[: LIMITS.max_message_characters]


def retry_s(header: str) -> int:
    """Return the seconds that a Retry-After header, a number or a date, asks to wait: 1 to `max_retry_s`.

    >>> retry_s("7"), retry_s(""), retry_s("soon"), retry_s("Thu, 01 Jan 1970 00:00:00 GMT")
    (7, 1, 1, 1)
    """
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            seconds = 1
    return int(min(max(seconds, 1), LIMITS.max_retry_s)) if seconds == seconds else 1
