"""Warnings that each of many requests causes do not fill a log."""

import logging

import pytest

from sie_triton.system.telemetry.logs import WarningLimit
from tests.support.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def passed(clock) -> list[str]:
    """Messages that the filter has let through; the logger `limited` writes them."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Kept(), logging.getLogger("limited")
    handler.addFilter(WarningLimit(clock))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)


def warn(name: str) -> None:
    logging.getLogger("limited").warning("store: %s", name)


def test_repeated_warnings_are_left_out_and_counted(passed, clock):
    for i in range(1000):
        warn(str(i))
    assert passed == [f"store: {i}" for i in range(10)]
    clock.now += 10.0
    warn("later")
    assert passed[10:] == [f"store: later ({1000 - 10} such lines were left out)"]
    clock.now += 10.0
    warn("rare")
    assert passed[-1] == "store: rare"


def test_other_warnings_and_information_pass(passed):
    for i in range(10 + 5):
        warn(str(i))
        logging.getLogger("limited").info("request %d", i)
    logging.getLogger("limited").error("another")
    assert len(passed) == 10 + 10 + 5 + 1
    assert passed[-1] == "another"
