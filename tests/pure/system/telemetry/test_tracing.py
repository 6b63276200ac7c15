"""Spans: their ids, their parents, their times, and who is recorded."""

import os
import subprocess
import sys
from time import monotonic_ns, time_ns

import pytest

from sie_triton.errors import SettingsError
from sie_triton.system.telemetry.identity import Trace
from sie_triton.system.telemetry.options import Telemetry
from sie_triton.system.telemetry.spans import check_tracing

sdk = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
tracing = pytest.importorskip("sie_triton.system.telemetry.tracing")

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


@pytest.fixture
def made(monkeypatch):
    """Make spans with a sampler; `finished` lists what was exported."""

    def make(sampler="always_on", argument=""):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
        exporter = sdk.InMemorySpanExporter()
        spans = tracing.Spans(exporter)
        return spans, lambda: spans.close() or {span.name: span for span in exporter.get_finished_spans()}

    return make


def ids(span):
    parent = f"{span.parent.span_id:016x}" if span.parent else ""
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", parent


def test_the_request_is_below_its_clients_span_and_stages_are_below_the_request(made):
    spans, finished = made()
    trace = spans.begin(SAMPLED)
    assert (trace.trace_id, trace.parent_id) == (TRACE, PARENT)
    trace = Trace.parse(str(trace))
    began = monotonic_ns()
    spans.add(trace, "preprocess", began, began + 5_000_000, {"sie.cost": 3})
    spans.end(trace, "encode org/m", began, {"sie.model": "org/m"})
    found = finished()
    assert ids(found["encode org/m"]) == (TRACE, trace.span_id, PARENT)
    child = found["preprocess"]
    assert ids(child)[0] == TRACE
    assert ids(child)[2] == trace.span_id
    assert child.end_time - child.start_time == 5_000_000
    assert abs(child.start_time - (time_ns() - monotonic_ns() + began)) < 1e9
    assert dict(child.attributes) == {"sie.cost": 3}


def test_a_request_without_a_client_trace_is_the_root_of_a_new_one(made):
    spans, finished = made()
    first, second = spans.begin(), spans.begin("nonsense")
    assert first.trace_id != second.trace_id
    for trace in (first, second):
        spans.end(trace, trace.trace_id, 0, {})
    for trace in (first, second):
        assert ids(finished()[trace.trace_id]) == (trace.trace_id, trace.span_id, "")


def test_a_pass_links_to_its_requests_and_each_request_to_the_pass(made):
    spans, finished = made()
    traces = [spans.begin(), spans.begin()]
    batch = spans.batch("batch", 0, 1, {}, traces)
    spans.add(traces[1], "forward pass", 0, 1, links=[batch])
    found = finished()
    assert [f"{link.context.span_id:016x}" for link in found["batch"].links] == [trace.span_id for trace in traces]
    assert ids(found["batch"])[0] == traces[0].trace_id
    assert [link.context.span_id for link in found["forward pass"].links] == [found["batch"].context.span_id]


def test_an_error_is_the_status_of_its_span(made):
    spans, finished = made()
    spans.end(spans.begin(), "a", 0, {}, "busy: retry")
    spans.event("load", 0, 1, {}, "LoadError: no")
    assert [finished()[name].status.description for name in ("a", "load")] == ["busy: retry", "LoadError: no"]


@pytest.mark.parametrize(
    ("sampler", "argument", "traceparent", "is_recorded"),
    [
        ("always_on", "", UNSAMPLED, True),
        ("always_off", "", SAMPLED, False),
        ("parentbased_always_on", "", UNSAMPLED, False),
        ("parentbased_always_off", "", SAMPLED, True),
        ("traceidratio", "0.0", SAMPLED, False),
        ("traceidratio", "1.0", UNSAMPLED, True),
    ],
)
def test_the_sampler_decides_once(made, sampler, argument, traceparent, is_recorded):
    spans, finished = made(sampler, argument)
    trace = spans.begin(traceparent)
    assert trace.is_recorded == is_recorded
    assert trace.trace_id == TRACE  # for log lines
    assert trace.traceparent.endswith("-01" if is_recorded else "-00")
    if is_recorded:
        spans.add(trace, "child", 0, 1)
        spans.end(trace, "request", 0, {})
        assert finished().keys() == {"child", "request"}


def test_a_ratio_samples_its_share_and_every_process_decides_alike(made):
    (first, _), (second, _) = made("traceidratio", "0.25"), made("traceidratio", "0.25")
    headers = [f"00-{i * 0x9E3779B97F4A7C15 % 2**64:032x}-{PARENT}-00" for i in range(1, 2001)]
    decisions = [first.begin(each).is_recorded for each in headers]
    assert 400 < sum(decisions) < 600
    assert [second.begin(each).is_recorded for each in headers] == decisions


@pytest.mark.parametrize(
    ("variables", "wrong"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "OTEL_TRACES_EXPORTER: zipkin is unknown; allowed are otlp, console, none",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "udp"}, "OTEL_EXPORTER_OTLP_PROTOCOL: udp is unknown"),
    ],
)
def test_unknown_exporters_stop_the_start(variables, wrong):
    (problem,) = check_tracing(Telemetry(tracing=True), variables)
    assert problem.startswith(wrong)
    assert not list(check_tracing(Telemetry(), variables))
    with pytest.raises(SettingsError):
        tracing.spans_of(dict(variables))


def test_no_exporter_records_nothing():
    spans = tracing.spans_of({"OTEL_TRACES_EXPORTER": "none"})
    spans.end(spans.begin(), "a", 0, {})
    spans.close()


def test_nothing_is_imported_while_tracing_is_off():
    code = (
        "import sys; from sie_triton.pipeline.stages import inference, postprocess, preprocess; import "
        "sie_triton.doors.run, sie_triton.controller.run; from sie_triton.system.telemetry.spans import spans; "
        "assert spans() is None; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["", "mine"])
def test_the_service_has_the_name_of_the_variable_else_sies(made, monkeypatch, name):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "")  # what is set here is restored
    del os.environ["OTEL_SERVICE_NAME"]
    if name:
        monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    tracing.spans_of(os.environ)
    spans, finished = made()
    spans.end(spans.begin(), "encode org/m", monotonic_ns(), {})
    assert finished()["encode org/m"].resource.attributes["service.name"] == (name or "sie-server")
