"""Requests to four models in turn, under a memory limit that holds two of them."""

import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from sie_triton import SIEClient
from sie_triton.controller.commands import ask
from tests.residency.conftest import LONG, Crowd, Log, answer, serving, wait_for, watching

MODELS = [f"test/turn-{i}" for i in range(4)]

# Besides two models, for tokenizers and for what a loading model takes beyond what it keeps.
ROOM_FOR = 2.1


@pytest.fixture
def crowd(tmp_path: Path, wide_directory: Path) -> Iterator[Crowd]:
    with serving(tmp_path, dict.fromkeys(MODELS, wide_directory), 1024, ROOM_FOR, min_residency_s=0.5) as crowd:
        yield crowd


@pytest.mark.parametrize("seconds", [2, pytest.param(300, marks=LONG)])
def test_alternating_requests_respect_a_memory_limit_for_two_models(crowd, seconds):
    """Every request is answered, and the server's own share of memory does not grow."""
    with SIEClient(crowd.grpc) as client, watching(lambda: ask(crowd.settings, "/v1/models")) as seen:
        vector = answer(client, MODELS[0])
        first = Log()
        for model in MODELS:
            first.call(client, model, vector)
        before = settled(crowd)
        log, ended = Log(), time.monotonic() + seconds
        for model in cycle(MODELS):
            log.call(client, model, vector)
            if time.monotonic() > ended and len(log.calls) >= 2 * len(MODELS):
                break
        after = settled(crowd)
    residents = [sum(model["state"] == "resident" for model in each["models"]) for _, each in seen]
    first.check()
    log.check()
    assert max(residents) == 2
    assert len(crowd.evictions()) >= len(MODELS)
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
