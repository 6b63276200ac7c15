"""Lines of tritonserver, Python and libraries get one form."""

import json
import logging
import time

import pytest

from sie_triton.system.telemetry.lines import as_json, for_people, without_gpu
from sie_triton.system.telemetry.logs import JsonFormatter, PlainFormatter

TRITON = r'W1126 10:12:33.125073 1189 model.cc:25] "a \"quoted\" word"'
OURS = json.dumps('{"timestamp": "2025-12-18T10:30:00.250Z", "level": "INFO", "logger": "x", "message": "m"}')

read = as_json("workers", clock=lambda: 1766053800.25)


def record(message="a", level=logging.INFO, exc_info=None, **extra):
    made = logging.LogRecord("sie_triton.x", level, "f.py", 1, message, None, exc_info)
    made.created = 1766053800.25
    vars(made).update(extra)
    return made


def test_tritons_lines_have_level_time_and_place(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    found = json.loads(read(TRITON))
    assert found.pop("timestamp")[4:] == "-11-26T10:12:33.125Z"
    assert found == {
        "level": "WARNING",
        "logger": "tritonserver",
        "message": 'a "quoted" word',
        "source": "model.cc:25",
    }
    assert for_people(TRITON)[5:] == '11-26 10:12:33,125 WARNING tritonserver: a "quoted" word (model.cc:25)'


def test_each_line_names_its_worker_once():
    read = as_json("workers", worker="worker-0")
    lines = (TRITON, "plain", json.loads(OURS), f"I1126 10:12:33.125073 1189 model.cc:25] {OURS}")
    assert {json.loads(read(line))["worker"] for line in lines} == {"worker-0"}
    named = read("plain")
    assert as_json("launcher", worker="other")(named) == as_json("x")(named)
    assert as_json("workers", worker="worker-0")('I1126 10:12:33.125073 1189 model.cc:25] ""') == ""


@pytest.mark.parametrize(
    ("message", "level"),
    [
        ("CudaDriverHelper has not been initialized.", "INFO"),
        ("unable to create stream for a: CUDA driver version is insufficient for CUDA runtime version", "INFO"),
        ("DCGM unable to start: DCGM initialization error", "INFO"),
        ("failed to load 'a' version 1", "ERROR"),
    ],
)
def test_on_a_machine_without_a_gpu_only_what_is_not_about_cuda_is_an_error(message, level):
    line = f'E1126 10:12:33.125073 1189 server.cc:241] "{message}"'
    assert json.loads(without_gpu(read)(line)) | {"level": level} == json.loads(without_gpu(read)(line))
    assert json.loads(read(line))["level"] == "ERROR"
    assert f" {level} tritonserver: " in without_gpu(for_people)(line)


def test_a_stages_line_that_came_through_triton_is_taken_out_of_it():
    assert read(f"I1126 10:12:33.125073 1189 model.cc:25] {OURS}") == json.loads(OURS)
    said = 'I1126 10:12:33.125073 1189 model.cc:25] "sie_triton.system.telemetry.request_log: request"'
    assert for_people(said)[5:] == "11-26 10:12:33,125 INFO sie_triton.system.telemetry.request_log: request"


def test_python_lines_and_lines_of_libraries():
    assert json.loads(read("2026-11-26 10:13:00,892 ERROR sie_triton.x: no: y")) | {"timestamp": ""} == {
        "timestamp": "",
        "level": "ERROR",
        "logger": "sie_triton.x",
        "message": "no: y",
    }
    assert json.loads(read("Loading weights: 100%")) == {
        "timestamp": "2025-12-18T10:30:00.250Z",
        "level": "INFO",
        "logger": "workers",
        "message": "Loading weights: 100%",
    }


@pytest.mark.parametrize(
    "line", ['{"timestamp": "x"', '{"timestamp": }', '{"a": 1}', "I1126", '"', "I1126 10:12:33.1 1 a:1] x"]
)
def test_whatever_else_is_printed_becomes_a_valid_line(line):
    assert json.loads(read(line))["message"] == line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2026-13-26 10:13:00,892 INFO x: a", "a"),
        ("0001-01-01 00:00:00,000 INFO x: a", "a"),
        ("I0230 10:12:33.125073 1189 a.cc:1] b", "b"),
        ("I1126 25:12:33.125073 1189 a.cc:1] b", "b"),
    ],
)
def test_a_time_that_no_calendar_has_is_that_of_the_line(line, message):
    found = json.loads(read(line))
    assert found["message"] == message
    assert not found["timestamp"].startswith(("2026-13", "I"))


DEEP = "[" * 100_000


def test_lines_that_are_nested_deeply_are_lines_of_text():
    assert json.loads(read('{"timestamp": ' + DEEP))["message"] == '{"timestamp": ' + DEEP
    said = f'I1126 10:12:33.125073 1189 a.cc:1] "{DEEP}'
    assert json.loads(read(said))["message"] == DEEP


def test_tritons_empty_lines_are_left_out():
    assert read('I1126 10:12:33.125073 1189 server.cc:604] ""') == ""
    assert for_people('I1126 10:12:33.125073 1189 server.cc:604] ""') == ""


def test_json_lines_have_the_fields_of_a_call_and_the_traceback():
    try:
        raise ValueError("ü")
    except ValueError as exc:
        made = JsonFormatter().format(record("no", exc_info=(ValueError, exc, exc.__traceback__), latency_ms=45.2))
    found = json.loads(made)
    assert found.pop("exception").splitlines()[-1] == "ValueError: ü"
    assert found == {
        "timestamp": "2025-12-18T10:30:00.250Z",
        "level": "INFO",
        "logger": "sie_triton.x",
        "message": "no",
        "latency_ms": 45.2,
    }
    assert read(made) == made


def test_lines_for_people_name_the_fields():
    made = PlainFormatter(head="").format(record("request", request_id="7", latency_ms=45.2, other=1))
    assert made == "sie_triton.x: request latency_ms=45.2 request_id=7"
