"""Log lines of a process: for people, or as JSON with the field names of SIE's own server.

Only the standard library, because workers in environments of their own have no other.
"""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from threading import Lock
from time import monotonic
from typing import Any

from sie_triton.system.telemetry.options import OPTIONS, Telemetry

# Fields of a line about a request, in the order in which people read them. A logging call passes them as `extra`.
FIELDS = ("model", "verb", "num_items", "status", "latency_ms", "error", "request_id", "trace_id")

STANDARD = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime"})


class PlainFormatter(logging.Formatter):
    """Lines for people. Those of FIELDS that a record has follow its message, as `name=value`."""

    def __init__(self, head: str = "%(asctime)s %(levelname)s ") -> None:
        super().__init__(f"{head}%(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        fields = [f" {name}={word(record.__dict__[name])}" for name in FIELDS if name in record.__dict__]
        return super().formatMessage(record) + "".join(fields)


def word(value: Any) -> str:
    """Return a value as one word, which no client can break into two lines.

    >>> print(word("abc"), word("a b"), word("a\\nb"))
    abc "a b" "a\\nb"
    """
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


class JsonFormatter(logging.Formatter):
    """Lines of JSON, with everything that a logging call passes as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        more = {name: value for name, value in record.__dict__.items() if name not in STANDARD}
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        return json_line(timestamp(record.created), record.levelname, record.name, record.getMessage(), more)


def json_line(at: str, level: str, logger: str, message: str, more: Mapping[str, Any]) -> str:
    fields = {"timestamp": at, "level": level, "logger": logger, "message": message, **more}
    return json.dumps(fields, default=str, ensure_ascii=False)


def timestamp(seconds: float) -> str:
    """
    >>> timestamp(1766053800.25)
    '2025-12-18T10:30:00.250Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class WarningLimit(logging.Filter):
    """Passes at most `most` warnings and errors of one line of code in `interval_s`, however many requests fail.

    The first one of the next interval says how many were left out. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic, most: int = 10, interval_s: float = 10.0) -> None:
        super().__init__()
        self._most, self._interval_s = most, interval_s
        self._clock = clock
        self._lock = Lock()
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}  # place → start of its interval, warnings in it

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now, place = self._clock(), (record.pathname, record.lineno)
        with self._lock:
            began, count = self._counts.get(place, (now, 0))
            is_over = now - began >= self._interval_s
            self._counts[place] = (now, 1) if is_over else (began, count + 1)
        if is_over and count > self._most:
            record.msg, record.args = f"{record.getMessage()} ({count - self._most} such lines were left out)", None
        return is_over or count < self._most


def configure(options: Telemetry = OPTIONS, level: int = logging.INFO) -> None:
    """Send the lines of this process to standard error, repeated warnings only now and then."""
    handler = logging.StreamHandler()
    handler.addFilter(WarningLimit())
    handler.setFormatter(JsonFormatter() if options.log_json else PlainFormatter())
    logging.basicConfig(handlers=[handler], level=level)
