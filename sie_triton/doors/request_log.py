"""Log lines about requests at the door, if they are wanted: about each one, or about slow ones."""

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from sie_triton.system.telemetry.options import Telemetry

if TYPE_CHECKING:
    from sie_triton.doors.endpoint import DoorRequest

log = logging.getLogger(__name__)

# Characters of a path in logs and traces.
MAX_URL = 200


def log_request(request: "DoorRequest", status: int, wanted: Telemetry) -> None:
    """Write the line about a request, if it is wanted."""
    latency_ms = (monotonic() - request.arrived_at) * 1000
    is_slow = 0 < wanted.log_slow_ms <= latency_ms
    if wanted.log_requests or is_slow:
        fields: dict[str, Any] = {"latency_ms": round(latency_ms, 2), "status": status}
        fields["request_id"] = request.request_id or request.trace_id
        if request.trace.trace_id:
            fields["trace_id"] = request.trace.trace_id
        log.info("%s %s", request.method, request.url[:MAX_URL], extra=fields)
