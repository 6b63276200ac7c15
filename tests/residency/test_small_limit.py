"""Requests to five models in turn, under a memory limit that holds three of them."""

import time
from itertools import cycle

import pytest

from sie_triton import SIEClient
from sie_triton.controller.commands import ask
from tests.residency.conftest import LONG, MODELS, Crowd, Log, wait_for, watching

IN_TURN = MODELS[2:7]


@pytest.mark.parametrize("seconds", [2, pytest.param(300, marks=LONG)])
def test_alternating_requests_respect_a_memory_limit_for_three_models(crowd, vector, seconds):
    """Every request is answered, and the server's own share of memory does not grow."""
    num_before = len(crowd.evictions())
    with SIEClient(crowd.grpc) as client, watching(lambda: ask(crowd.settings, "/v1/models")) as seen:
        first = Log()
        for model in IN_TURN:
            first.call(client, model, vector)
        before = settled(crowd)
        log, ended = Log(), time.monotonic() + seconds
        for model in cycle(IN_TURN):
            log.call(client, model, vector)
            if time.monotonic() > ended and len(log.calls) >= len(IN_TURN):
                break
        after = settled(crowd)
    residents = [sum(model["state"] == "resident" for model in each["models"]) for _, each in seen]
    first.check()
    log.check()
    assert max(residents) == 3
    assert len(crowd.evictions()) - num_before >= len(IN_TURN)
    assert after <= 1.2 * before


def settled(crowd: Crowd) -> int:
    """The server's own share of memory in bytes once nothing loads and no process is leaving, so that it is steady."""
    shares: list[int] = []

    def is_steady() -> bool:
        found = ask(crowd.settings, "/v1/models")
        if any(model["state"] == "loading" for model in found["models"]):
            shares.clear()
        shares.append(found["memory"]["server_bytes"])
        latest = shares[-20:]
        return len(latest) == 20 and max(latest) - min(latest) < 5e6

    wait_for(is_steady)
    return shares[-1]
