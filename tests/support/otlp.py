"""A receiver of OpenTelemetry's protocol, over gRPC, that keeps the spans."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True)
class Span:
    """Ids in hex digits; `parent_id` is empty for a root, times are nanoseconds since the epoch."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    started: int
    ended: int
    links: list[str]
    attributes: dict[str, Any]
    error: str
    service: str


@dataclass
class Receiver(TraceServiceServicer):
    """Keeps all spans that it receives; `address` is its HOST:PORT."""

    spans: list[Span] = field(default_factory=list)
    address: str = ""

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> Any:
        for resource in request.resource_spans:
            service = values(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [read(span, service) for span in scope.spans]
        return ExportTraceServiceResponse()

    def of_trace(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id == trace_id]


def read(span: Any, service: str) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        [link.span_id.hex() for link in span.links],
        values(span.attributes),
        span.status.message,
        service,
    )


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver, server = Receiver(), grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield receiver
    server.stop(None)
