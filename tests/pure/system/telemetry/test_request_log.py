"""Log lines about requests: each one, slow ones, or none."""

import json
import logging

import pytest

from sie_triton.system.telemetry.identity import MAX_ID
from sie_triton.system.telemetry.logs import PlainFormatter
from sie_triton.system.telemetry.options import Telemetry
from sie_triton.system.telemetry.request_log import RequestLog


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (Telemetry(), []),
        (Telemetry(log_slow_ms=5), [5.0, 6.0]),
        (Telemetry(log_requests=True), [0.0, 4.9, 5.0, 6.0]),
        (Telemetry(log_requests=True, log_slow_ms=5), [0.0, 4.9, 5.0, 6.0]),
    ],
    ids=["none", "slow", "all", "all, whatever is slow"],
)
def test_which_requests_have_a_line(options, wanted):
    log = RequestLog("org/m", options)
    assert [ms for ms in (0.0, 4.9, 5.0, 6.0) if log.wants(ms)] == wanted
    assert log.is_on == bool(wanted)


def test_a_line_has_what_is_known_of_the_request(caplog):
    caplog.set_level(logging.INFO, "sie_triton.system.telemetry.request_log")
    log = RequestLog("org/m", Telemetry(log_requests=True))
    log.add(1.2345, "7" * 999, "abc", verb="encode", num_items=2)
    log.add(1.0, "", "", "input: parameter dimensions: 0 is not allowed")
    done, failed = caplog.records
    assert (done.levelname, done.getMessage()) == ("INFO", "request")
    assert (done.model, done.verb, done.num_items, done.latency_ms) == ("org/m", "encode", 2, 1.23)
    assert (done.request_id, done.trace_id) == ("7" * MAX_ID, "abc")
    assert "error" not in vars(done)
    assert (failed.levelname, failed.error) == ("WARNING", "input: parameter dimensions: 0 is not allowed")
    assert vars(failed).keys().isdisjoint({"request_id", "trace_id", "verb"})


@pytest.mark.parametrize("id", ["a\nb", "a b", "\x1b[31m", "\u2028"])
def test_a_clients_id_makes_no_second_line(id):
    record = logging.makeLogRecord({"msg": "request", "name": "x", "request_id": id})
    line = PlainFormatter(head="").format(record)
    assert line.isprintable()
    assert json.loads(line.partition("request_id=")[2]) == id
