"""Telemetry settings cross into child processes by their environment."""

import pytest

from sie_triton.settings import read_settings
from sie_triton.system.telemetry.options import Telemetry


def test_words_of_the_environment():
    assert all(Telemetry.of({"SIE_LOG_JSON": text}).log_json for text in ("1", "true", "True", " yes ", "on"))
    assert not any(Telemetry.of({"SIE_LOG_JSON": text}).log_json for text in ("", "0", "false", "no", "maybe"))
    assert not any(Telemetry.of({"SIE_LOG_SLOW_MS": text}).log_slow_ms for text in ("-1", "nan", "inf", "x", ""))


@pytest.mark.parametrize(
    ("given", "has_lines"),
    [
        ({}, False),
        ({"log_requests": True}, True),
        ({"log_json": True}, True),
        ({"log_json": True, "log_requests": False}, False),
    ],
)
def test_json_logs_have_a_line_for_each_request_unless_these_are_turned_off(given, has_lines):
    settings = read_settings(**given)
    assert settings.telemetry.log_requests == has_lines
    assert Telemetry.of(settings.telemetry.variables()).log_requests == has_lines
    in_stock_triton = {f"SIE_{name.upper()}": str(value) for name, value in given.items()}
    assert Telemetry.of(in_stock_triton).log_requests == has_lines


def test_settings_reach_a_child():
    settings = read_settings(
        log_json=True, log_requests=True, log_slow_ms=7, tracing_enabled=True, instrumentation=True
    )
    assert Telemetry.of(settings.telemetry.variables()) == Telemetry(True, True, 7.0, True, True)
    assert Telemetry.of(read_settings().telemetry.variables()) == Telemetry()
