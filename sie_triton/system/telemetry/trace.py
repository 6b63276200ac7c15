"""The trace of one request, as its context carries it from stage to stage.

`trace_id`: the trace, also in log lines. `span_id`: the span of the whole request in Triton, below which each stage
puts its own; empty if the trace is not recorded. `parent_id`: the client's or the door's span; empty if there is none.
"""

from secrets import token_hex
from typing import NamedTuple

from sie_triton.system.telemetry.identity import trace_context


class Trace(NamedTuple):
    """Ids as hex digits, of 32, 16 and 16 characters."""

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
