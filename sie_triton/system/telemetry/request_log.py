"""Log lines about requests: about each one, or only about slow ones."""

import logging
from typing import Any

from sie_triton.system.telemetry.identity import MAX_ID
from sie_triton.system.telemetry.options import OPTIONS, Telemetry

log = logging.getLogger(__name__)


class RequestLog:
    """Writes the lines of one model's requests; any thread may call it.

    A line has the identity that the client gave, the verb, the number of items, the duration, and the error if there
    is one.
    """

    def __init__(self, model: str, options: Telemetry = OPTIONS) -> None:
        self._model = model
        self._slow_ms = 0.0 if options.log_requests else options.log_slow_ms
        self.is_on = options.log_requests or options.log_slow_ms > 0

    def wants(self, latency_ms: float) -> bool:
        """Return True if a request of this duration has a line."""
        return self.is_on and latency_ms >= self._slow_ms

    def add(self, latency_ms: float, id: str, trace_id: str, error: str = "", **more: Any) -> None:
        """Write the line of a request that `wants` wants."""
        fields = {
            "model": self._model,
            **more,
            "latency_ms": round(latency_ms, 2),
            "error": error,
            "request_id": id[:MAX_ID],
            "trace_id": trace_id,
        }
        level = logging.WARNING if error else logging.INFO
        log.log(level, "request failed" if error else "request", extra={k: v for k, v in fields.items() if v})
