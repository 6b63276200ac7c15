"""One request can be served through the server: by its id in JSON logs, and by its trace at a receiver."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from sie_triton.contract.names import triton_name
from tests.support.controller import wait_for
from tests.support.counted_server import ENCODER, EXTRACTOR, RERANKER, Served
from tests.support.otlp import Span

STAGE_LOG, DOOR_LOG = "sie_triton.system.telemetry.request_log", "sie_triton.doors.request_log"
PARENT = "00f067aa0ba902b7"

# Each process relates its monotonic clock to the epoch by itself.
JITTER_NS = 5_000_000

# Body of a request at the door, and inputs of Triton's ensemble, by the verb's model and ensemble.
VERBS: dict[str, tuple[str, dict[str, Any], dict[str, list[str]]]] = {
    "encode": (ENCODER, {"items": [{"text": "a"}]}, {"text": ["a"]}),
    "score": (RERANKER, {"query": {"text": "q"}, "items": [{"text": "a"}]}, {"query": ["q"], "text": ["a"]}),
    "extract": (
        EXTRACTOR,
        {"items": [{"text": "Ada lives in Rome."}], "params": {"labels": ["person"]}},
        {"text": ["Ada lives in Rome."], "labels": ["person"]},
    ),
}


def at_the_door(served: Served, verb: str, headers: dict[str, str]) -> None:
    model, body, _ = VERBS[verb]
    served.http.post(f"/v1/{verb}/{model}", json=body, headers=headers).raise_for_status()


def over(module: Any, port: int) -> Callable[[Served, str, dict[str, str]], None]:
    def ask(served: Served, verb: str, headers: dict[str, str]) -> None:
        model, _, inputs = VERBS[verb]
        tensors = []
        for name, texts in inputs.items():
            tensors.append(module.InferInput(name, [len(texts)], "BYTES"))
            tensors[-1].set_data_from_numpy(np.array([each.encode() for each in texts], object))
        with module.InferenceServerClient(f"127.0.0.1:{served.ports[port]}") as client:
            client.infer(triton_name(model), tensors, headers=headers)

    return ask


WAYS = {"door": at_the_door, "http": over(tritonclient.http, 0), "grpc": over(tritonclient.grpc, 1)}


@pytest.mark.parametrize(("way", "verb"), [*((way, "encode") for way in WAYS), ("door", "score"), ("grpc", "extract")])
def test_a_recorded_request_has_its_whole_trace_and_its_log_lines(served, way, verb):
    trace_id, request_id = uuid4().hex, f"{way}-{verb}"
    WAYS[way](served, verb, {"traceparent": f"00-{trace_id}-{PARENT}-01", "x-request-id": request_id})
    model = VERBS[verb][0]
    request = f"{verb} {model}"
    expected = {request, "preprocess", "queue", "batch", "forward pass", "postprocess"}
    expected |= {f"POST /v1/{verb}/{model}"} if way == "door" else set()
    wait_for(lambda: {span.name for span in served.receiver.of_trace(trace_id)} >= expected)
    spans: dict[str, Span] = {span.name: span for span in served.receiver.of_trace(trace_id)}
    assert spans.keys() == expected
    outermost = spans.get(f"POST /v1/{verb}/{model}", spans[request])
    assert outermost.parent_id == PARENT
    assert spans[request].parent_id == (outermost.span_id if way == "door" else PARENT)
    for name in expected - {outermost.name, request}:
        assert spans[name].parent_id == spans[request].span_id
        assert spans[request].started - JITTER_NS <= spans[name].started <= spans[name].ended
        assert spans[name].ended <= spans[request].ended + JITTER_NS
    assert spans["batch"].links == [spans[request].span_id]
    assert spans["forward pass"].links == [spans["batch"].span_id]
    assert spans[request].attributes.items() >= {"sie.model": model, "sie.request_id": request_id}.items()
    assert {span.service for span in spans.values()} == {"sie-server"}

    wait_for(lambda: len(served.lines_of(request_id)) == (2 if way == "door" else 1))
    for line in served.lines_of(request_id):
        assert line["trace_id"] == trace_id
        assert line["latency_ms"] > 0
    of_stage = next(
        line for line in served.lines_of(request_id) if line["logger"] == "sie_triton.system.telemetry.request_log"
    )
    assert (of_stage["model"], of_stage["verb"], of_stage["num_items"]) == (model, verb, 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_its_client_does_not_record_has_lines_and_no_spans(served, way):
    trace_id, later, request_id = uuid4().hex, uuid4().hex, f"unrecorded-{way}"
    WAYS[way](served, "encode", {"traceparent": f"00-{trace_id}-{PARENT}-00", "x-request-id": request_id})
    WAYS[way](served, "encode", {"traceparent": f"00-{later}-{PARENT}-01"})
    wait_for(lambda: any(span.name == "postprocess" for span in served.receiver.of_trace(later)))
    assert not served.receiver.of_trace(trace_id)
    assert {line["trace_id"] for line in served.lines_of(request_id)} == {trace_id}


def test_a_request_without_a_trace_begins_one(served):
    WAYS["http"](served, "encode", {"x-request-id": "alone"})
    wait_for(lambda: served.lines_of("alone"))
    (line,) = served.lines_of("alone")
    wait_for(lambda: any(span.name.startswith("encode") for span in served.receiver.of_trace(line["trace_id"])))
    root = next(span for span in served.receiver.of_trace(line["trace_id"]) if span.name.startswith("encode"))
    assert root.parent_id == ""


def test_an_error_is_in_its_span_and_its_line(served):
    trace_id = uuid4().hex
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01", "x-request-id": "wrong"}
    body = {"items": [{"text": "a"}], "params": {"options": {"dimensions": 0}}}
    assert served.http.post(f"/v1/encode/{ENCODER}", json=body, headers=headers).status_code == 400
    wait_for(lambda: len(served.receiver.of_trace(trace_id)) == 2)
    span = next(span for span in served.receiver.of_trace(trace_id) if span.name == f"preprocess {ENCODER}")
    assert span.error.startswith("input: parameter dimensions: 0 is not allowed")
    assert span.attributes["sie.error"] == "input"
    wait_for(lambda: len(served.lines_of("wrong")) == 2)
    by_logger = {line["logger"]: line for line in served.lines_of("wrong")}
    of_stage, of_door = by_logger[STAGE_LOG], by_logger[DOOR_LOG]
    assert (of_stage["level"], of_door["status"]) == ("WARNING", 400)
    assert of_stage["error"] == span.error


def test_a_hostile_id_is_cut_and_makes_no_second_line(served):
    text = 'x"}\n{"timestamp": "", "request_id": "forged"' + "y" * 500
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    url = f"http://127.0.0.1:{served.ports[0]}/v2/models/{triton_name(ENCODER)}/infer"
    httpx.post(url, json={"id": text, "inputs": [tensor]}, timeout=60).raise_for_status()
    wait_for(lambda: served.lines_of(text[:128]))
    assert not served.lines_of("forged")


def test_every_process_writes_the_same_kind_of_line_and_an_eviction_has_a_span(served):
    loggers = {line["logger"] for line in served.lines}
    assert loggers >= {
        "tritonserver",
        "sie_triton.server",
        "sie_triton.system.telemetry.request_log",
        "sie_triton.doors.request_log",
    }
    served.evict(ENCODER)
    wait_for(lambda: any(line["logger"] == "sie_triton.controller.swaps" for line in served.lines))
    wait_for(lambda: any(span.name.startswith("swap ") for span in served.receiver.spans))
    swap = next(span for span in served.receiver.spans if span.name.startswith("swap "))
    assert swap.attributes == {"sie.model": ENCODER, "sie.reason": "evict: asked for"}
    loads = [span for span in served.receiver.spans if span.name == "load inference"]
    assert ENCODER in {span.attributes["sie.model"] for span in loads}
    wait_for(lambda: any(line["logger"].startswith("sie_triton.engines") for line in served.lines))
    for line in served.lines:
        assert line.keys() >= {"timestamp", "level", "logger", "message"}
        assert line["timestamp"].endswith("Z")
    log = (served.data_dir / "logs" / "door.log").read_text().splitlines()
    assert [json.loads(line)["logger"] for line in log].count(DOOR_LOG) > 0
