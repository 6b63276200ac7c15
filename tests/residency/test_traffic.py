"""Models come and go under traffic, unnoticed by clients."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.records.status import RESIDENT, records_of
from sie_triton.system.processes.pids import is_alive
from tests.residency.conftest import (
    LONG,
    MIN_RESIDENCY_S,
    MODELS,
    ONE_MODEL,
    TEXT,
    Crowd,
    Log,
    busy,
    wait_for,
    watching,
)

PER_SECOND = 2
EXPONENT = 1.5

# The controller looks every 0.2 s and this test every 0.1 s: uses nearer than this came at the same time.
TIE_S = 0.5


@pytest.mark.parametrize("seconds", [10, pytest.param(600, marks=LONG)])
def test_evictions_under_traffic_fail_no_request(crowd, vector, seconds):
    num_before = len(crowd.evictions())
    with watching(lambda: ask(crowd.settings, "/v1/models")) as seen:
        log = zipf(crowd, vector, seconds, MODELS)
    evictions = crowd.evictions()[num_before:]
    used = [answer["memory"]["used_bytes"] for _, answer in seen]
    residents = [sum(model["state"] == "resident" for model in answer["models"]) for _, answer in seen]
    limit = crowd.settings.memory_limit_bytes
    log.check()
    assert max(used) <= limit + ONE_MODEL
    assert 2 <= max(residents) < len(MODELS)
    assert evictions
    assert {reason for _, _, reason in evictions} <= {"room for another", "pressure"}
    num_checked = sum(check_order(*evictions[i][:2], evictions[:i], log, seen) for i in range(len(evictions)))
    assert num_checked > len(evictions) / 2


def zipf(crowd: Crowd, vector: np.ndarray, seconds: float, models: list[str]) -> Log:
    """Open loop: the three models that find room get four in five of the requests."""
    log, random = Log(entities=crowd.entities), np.random.default_rng(7)
    weights = 1 / np.arange(1, len(models) + 1) ** EXPONENT
    with SIEClient(crowd.grpc) as client, ThreadPoolExecutor(64) as pool:
        started = time.monotonic()
        for i in range(int(seconds * PER_SECOND)):
            time.sleep(max(0.0, started + i / PER_SECOND - time.monotonic()))
            pool.submit(log.call, client, str(random.choice(models, p=weights / weights.sum())), vector)
    return log


def check_order(when: float, victim: str, earlier: list[tuple[float, str, str]], log: Log, seen: list) -> bool:
    """Check with the request log that `victim` is in the half of the models in memory that was used longest ago.

    Those that were evicted `earlier`, some in the same moment, are not among them. False where that cannot be told, as
    the eviction was before this test looked.
    """
    gone = {model for at, model, _ in earlier if when - at < MIN_RESIDENCY_S}
    before = [residents(state) - gone for at, state in seen if at <= when]
    settled = [residents(state) for at, state in seen if MIN_RESIDENCY_S < when - at < MIN_RESIDENCY_S + 1]
    if not settled:
        return False
    used = {model: last_use(model, when, log) for model in before[-1] | {victim}}
    # Those that had been there long enough to be chosen, and were idle for longer.
    idler = [m for m in before[-1].intersection(*settled) if used[m] < used[victim] - TIE_S]
    assert len(idler) < (len(used) + 1) // 2, (victim, used)
    return True


def residents(answer: dict) -> set[str]:
    return {model["model"] for model in answer["models"] if model["state"] == "resident"}


def last_use(model: str, when: float, log: Log) -> float:
    """Time of the model's last use; `when` itself if a request is in progress."""
    uses = [call for call in log.calls if call.model == model and call.started <= when]
    return max((min(call.ended, when) for call in uses), default=0.0)


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=LONG)])
def test_evicting_the_busiest_model_fails_no_request(crowd, vector, rounds):
    model = MODELS[0]
    with SIEClient(crowd.grpc) as client:
        client.encode(model, TEXT)
    with busy(crowd, model, vector) as log, watching(lambda: copies(crowd, model), 0.01) as seen:
        for _ in range(rounds):
            wait_for(lambda: crowd.state(model) == "resident")
            worker = crowd.models()[model]["worker_pid"]
            crowd.act(model, "evict")
            wait_for(lambda worker=worker: not is_alive(worker))
    log.check()
    assert max(number for _, number in seen) == 1


def copies(crowd: Crowd, model: str) -> int:
    """Living processes that say they hold the weights of `model`."""
    records = records_of(crowd.settings.status_dir, triton_name(model), "inference")
    return sum(r["state"] == RESIDENT and bool(r["worker_pid"]) and is_alive(r["worker_pid"]) for r in records)
