"""The identity of a request: an id and a trace context, which its client sends as headers.

Triton passes both headers on as request parameters, under the names that the client wrote; so does the door.
"""

import re
from collections.abc import Mapping
from secrets import token_hex
from typing import Any, NamedTuple

REQUEST_ID, TRACEPARENT = "x-request-id", "traceparent"

# Triton's option of both protocols, a regular expression for whole names.
FORWARDED = f"(?i){REQUEST_ID}|{TRACEPARENT}"

# Longer ids are cut.
MAX_ID = 128

# https://www.w3.org/TR/trace-context/: version, trace id, parent id, flags.
CONTEXT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    """`trace_id` and `span_id` as hex digits; `is_sampled`: the caller records this trace."""

    trace_id: str
    span_id: str
    is_sampled: bool


def trace_context(header: str) -> TraceContext | None:
    """Return the trace context of a `traceparent`; None if it is malformed, which starts a new trace.

    >>> trace_context("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    TraceContext(trace_id='4bf92f3577b34da6a3ce929d0e0e4736', span_id='00f067aa0ba902b7', is_sampled=True)
    >>> trace_context("00-4bf92f3577b34da6a3ce929d0e0e4736")
    """
    if not (found := CONTEXT.fullmatch(header)):
        return None
    return TraceContext(found[1], found[2], bool(int(found[3], 16) & 1))


def is_identity(parameter: str) -> bool:
    """Return True for the request parameters that are headers.

    >>> is_identity("Traceparent"), is_identity("normalize")
    (True, False)
    """
    return parameter.lower() in (REQUEST_ID, TRACEPARENT)


def identity(parameters: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the headers among request parameters, by their lower-case names; ids are cut to MAX_ID characters.

    >>> identity({"X-Request-Id": "7", "normalize": True})
    {'x-request-id': '7'}
    """
    return {name.lower(): str(value)[:MAX_ID] for name, value in parameters.items() if is_identity(name)}


class Trace(NamedTuple):
    """The trace of one request, as its context carries it from stage to stage: ids of 32, 16 and 16 hex digits.

    `trace_id` is also in log lines. `span_id`: the span of the whole request in Triton, below which each stage puts its
    own; empty if the trace is not recorded. `parent_id`: the client's or the door's span; empty if there is none.
    """

    trace_id: str = ""
    span_id: str = ""
    parent_id: str = ""

    @property
    def is_recorded(self) -> bool:
        return bool(self.span_id)

    @property
    def traceparent(self) -> str:
        """Header for the next process, whose spans are below this trace's; random parent if it is not recorded."""
        return f"00-{self.trace_id}-{self.span_id or token_hex(8)}-{int(self.is_recorded):02}"

    def __str__(self) -> str:
        return "-".join(self) if self.is_recorded else self.trace_id

    @classmethod
    def parse(cls, text: str) -> "Trace":
        """
        >>> Trace.parse(str(Trace("a", "b")))
        Trace(trace_id='a', span_id='b', parent_id='')
        >>> Trace.parse("a")
        Trace(trace_id='a', span_id='', parent_id='')
        """
        return cls(*text.split("-", 2))

    @classmethod
    def unrecorded(cls, traceparent: str) -> "Trace":
        """Return the trace of a request whose spans are not recorded here: its id, for log lines."""
        context = trace_context(traceparent)
        return cls(context.trace_id if context else "")
