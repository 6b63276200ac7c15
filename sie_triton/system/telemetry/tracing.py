"""Spans of this process, by OpenTelemetry's SDK: imported only while tracing is on.

A span is made once it has ended, with the times that a stage has measured anyway. Ids travel in the context of a
request (`trace.py`), so the stages need no state for it, and the decision to record falls once, by the sampler
of OTEL_TRACES_SAMPLER.
"""

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from threading import Thread, local
from time import monotonic_ns, time_ns
from types import MappingProxyType
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from sie_triton.errors import SettingsError
from sie_triton.system.telemetry.identity import Trace, trace_context

# Defaults of OpenTelemetry's variables, those of SIE's own server.
DEFAULTS = {"OTEL_SERVICE_NAME": "sie-server", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "always_on"}

SAMPLED = TraceFlags(TraceFlags.SAMPLED)

Attributes = Mapping[str, Any]
NONE: Attributes = MappingProxyType({})


class Ids(RandomIdGenerator):
    """Ids for the SDK: random, or those that the calling thread has set for its next span."""

    def __init__(self) -> None:
        self._next = local()

    def set_next(self, trace: Trace) -> None:
        self._next.trace_id, self._next.span_id = int(trace.trace_id, 16), int(trace.span_id, 16)

    def generate_trace_id(self) -> int:
        return self._taken("trace_id") or super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self._taken("span_id") or super().generate_span_id()

    def _taken(self, name: str) -> int:
        return int(self._next.__dict__.pop(name, 0))


class Spans:
    """Records the spans of this process under the names of SIE; any thread may call it. Times are monotonic, in ns."""

    def __init__(self, exporter: SpanExporter | None) -> None:
        self._ids = Ids()
        self._provider = TracerProvider(resource=Resource.create(), id_generator=self._ids, shutdown_on_exit=False)
        if exporter is not None:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sie_triton")

    def begin(self, traceparent: str = "") -> Trace:
        """Begin the part of a trace that belongs to this server; the sampler decides whether it is recorded."""
        parent = trace_context(traceparent)
        trace_id = parent.trace_id if parent else f"{self._ids.generate_trace_id():032x}"
        within = _within(trace_id, parent.span_id, parent.is_sampled) if parent else Context()
        sampler = self._provider.sampler
        if sampler.should_sample(within, int(trace_id, 16), "").decision is not Decision.RECORD_AND_SAMPLE:
            return Trace(trace_id)
        return Trace(trace_id, f"{self._ids.generate_span_id():016x}", parent.span_id if parent else "")

    def add(
        self,
        trace: Trace,
        name: str,
        started_ns: int,
        ended_ns: int,
        attributes: Attributes = NONE,
        *,
        links: Sequence[SpanContext] = (),
    ) -> None:
        """Record a span below that of the request."""
        self._add(_within(trace.trace_id, trace.span_id), name, started_ns, ended_ns, attributes, links=links)

    def end(self, trace: Trace, name: str, started_ns: int, attributes: Attributes, error: str = "") -> None:
        """Record the span of the request itself, which ends now."""
        within = _within(trace.trace_id, trace.parent_id) if trace.parent_id else Context()
        self._ids.set_next(trace)
        self._add(within, name, started_ns, monotonic_ns(), attributes, kind=SpanKind.SERVER, error=error)

    def batch(
        self, name: str, started_ns: int, ended_ns: int, attributes: Attributes, traces: Sequence[Trace]
    ) -> SpanContext:
        """Record the span of a forward pass in the trace of its first request, with links to all its requests."""
        links = [_span_context(trace.trace_id, trace.span_id) for trace in traces]
        within = _within(traces[0].trace_id, traces[0].span_id)
        return self._add(within, name, started_ns, ended_ns, attributes, links=links)

    def event(self, name: str, started_ns: int, ended_ns: int, attributes: Attributes, error: str = "") -> Trace:
        """Record something that no single request caused, such as a load, in a trace of its own; return the trace."""
        trace = self.begin()
        if trace.is_recorded:
            self._ids.set_next(trace)
            self._add(Context(), name, started_ns, ended_ns, attributes, error=error)
        return trace

    def close(self) -> None:
        """Export what waits, as far as the receiver takes it within a second: no process ends later for it."""
        last = Thread(target=self._provider.force_flush, args=(1000,), daemon=True)
        last.start()
        last.join(1.0)

    def _add(
        self,
        within: Context,
        name: str,
        started_ns: int,
        ended_ns: int,
        attributes: Attributes,
        *,
        links: Sequence[SpanContext] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
    ) -> SpanContext:
        since_epoch = time_ns() - monotonic_ns()
        span = self._tracer.start_span(
            name, within, kind, attributes, [Link(each) for each in links], started_ns + since_epoch
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(ended_ns + since_epoch)
        return span.get_span_context()


def _span_context(trace_id: str, span_id: str, is_sampled: bool = True) -> SpanContext:
    flags = SAMPLED if is_sampled else TraceFlags.get_default()
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags)


def _within(trace_id: str, span_id: str, is_sampled: bool = True) -> Context:
    return set_span_in_context(NonRecordingSpan(_span_context(trace_id, span_id, is_sampled)), Context())


def spans_of(environment: MutableMapping[str, str]) -> Spans:
    """Return the spans of this process, with the exporter that OpenTelemetry's variables name."""
    for name, default in DEFAULTS.items():
        environment.setdefault(name, default)
    return Spans(exporter_of(environment))


def exporter_of(environment: Mapping[str, str]) -> SpanExporter | None:
    """Return the exporter; SettingsError for one that is unknown."""
    name = environment["OTEL_TRACES_EXPORTER"].strip()
    if name == "none":
        return None
    if name == "console":
        return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: f"{span.to_json(indent=None)}\n")
    if name != "otlp":
        raise SettingsError(f"OTEL_TRACES_EXPORTER: {name[:40]} is unknown; allowed are otlp, console, none")
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol in (None, "", "grpc"):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    raise SettingsError(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol[:40]} is unknown; allowed are grpc, http/protobuf")
