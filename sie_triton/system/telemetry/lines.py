"""The form of the lines that the launcher receives from its children: one for all of them.

tritonserver's lines, Python's, and whatever a library prints → lines for people, or JSON
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from time import time

from sie_triton.system.telemetry.logs import json_line, timestamp

# I1126 10:12:33.125073 1189 grpc_server.cc:2558] "Started GRPCInferenceService at 127.0.0.1:8001"
OF_TRITON = re.compile(r"([IWEF])(\d\d)(\d\d) (\d\d:\d\d:\d\d\.\d{3})\d* \d+ ([\w.]+:\d+)\] (.*)", re.DOTALL)

# 2026-11-26 10:13:00,892 INFO sie_triton.pipeline.worker.calibration: calibrated
OF_PYTHON = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ([A-Z]+) ([\w.]+): (.*)", re.DOTALL)

LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}

TRITON = "tritonserver"

# Messages of Triton about CUDA, and about the tool that reads a GPU's metrics.
OF_CUDA = re.compile(r"CUDA|Cuda|DCGM|pinned")

Form = Callable[[str], str]


def for_people(line: str) -> str:
    """Return a line for people, empty if it says nothing. Those of Triton get the form of Python's.

    >>> for_people('E1126 10:12:33.125073 1189 model.cc:25] "no such model"')[5:]
    '11-26 10:12:33,125 ERROR tritonserver: no such model (model.cc:25)'
    """
    if not (found := OF_TRITON.fullmatch(line)):
        return line
    level, month, day, at, place, message = found.groups()
    head = f"{datetime.now().year}-{month}-{day} {at.replace('.', ',')} {LEVELS[level]}"
    message = unquoted(message)
    return message and f"{head} {said(place, message)}"


def without_gpu(form: Form) -> Form:
    """Return `form` for a machine without a GPU, where what Triton finds wrong with CUDA is no warning or error."""

    def calm(line: str) -> str:
        found = OF_TRITON.fullmatch(line)
        return form(f"I{line[1:]}" if found and OF_CUDA.search(found[6]) else line)

    return calm


def as_json(source: str, clock: Callable[[], float] = time, worker: str = "") -> Form:
    """Return a function that turns a line of `source` into JSON, or into an empty text if it says nothing.

    Lines that are JSON stay as they are, but each line names its worker if there is one.

    >>> as_json("workers", clock=lambda: 1766053800.25)("Loading weights")
    '{"timestamp": "2025-12-18T10:30:00.250Z", "level": "INFO", "logger": "workers", "message": "Loading weights"}'
    """

    def form(line: str) -> str:
        return named(unnamed(line), worker)

    def unnamed(line: str) -> str:
        if is_json(line):
            return line
        if found := OF_TRITON.fullmatch(line):
            level, month, day, at, place, quoted = found.groups()
            message = unquoted(quoted)
            if not message or is_json(message):
                return message
            since = _seconds(f"{datetime.now().year}-{month}-{day} {at}", "%Y-%m-%d %H:%M:%S.%f", clock)
            return json_line(timestamp(since), LEVELS[level], TRITON, message, {"source": place})
        if found := OF_PYTHON.fullmatch(line):
            at, level, logger, message = found.groups()
            since = _seconds(at, "%Y-%m-%d %H:%M:%S,%f", clock)
            return json_line(timestamp(since), level, logger, message, {})
        return json_line(timestamp(clock()), "INFO", source, line, {})

    return form


def named(line: str, worker: str) -> str:
    """Return a line of JSON with the name of the worker that it comes from, unless it names one.

    >>> named('{"message": "a"}', "worker-0")
    '{"message": "a", "worker": "worker-0"}'
    >>> named('{"message": "a", "worker": "b"}', "worker-0")
    '{"message": "a", "worker": "b"}'
    """
    if not worker or not line or "worker" in json.loads(line):
        return line
    return f'{line.rstrip()[:-1]}, "worker": {json.dumps(worker)}}}'


def _seconds(at: str, form: str, clock: Callable[[], float]) -> float:
    """Return the time of a line in seconds of the Unix epoch; the present one if no calendar has such a time."""
    try:
        return datetime.strptime(at, form).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return clock()


def is_json(line: str) -> bool:
    """Return True for the lines of JsonFormatter."""
    if not line.startswith('{"timestamp": '):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def unquoted(message: str) -> str:
    """Return a message of Triton without its quotes and escapes."""
    if not message.startswith('"'):
        return message
    try:
        return str(json.loads(message))
    except (ValueError, RecursionError):
        return message.strip('"')


def said(place: str, message: str) -> str:
    """Return the rest of a line: the logger of a stage is in its message, and Triton's own is named here."""
    return message if OF_STAGE.match(message) else f"{TRITON}: {message} ({place})"


OF_STAGE = re.compile(r"sie_triton[\w.]*: ")
