"""Loads that do not end, beside loads that do."""

import fcntl
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.errors import SIEError
from sie_triton.records.status import records_of
from sie_triton.system.processes.fork_server import fork_server_ids
from sie_triton.system.processes.pids import is_alive
from tests.residency.conftest import MODELS, TEXT, Crowd, Log, wait_for


def loader_of(crowd, model: str) -> int:
    """Return the process id of the worker that loads a model, or 0."""
    records = records_of(crowd.settings.status_dir, triton_name(model), "inference")
    return next((r["worker_pid"] for r in records if r["granted_bytes"]), 0)


def make_cold(crowd, *models: str) -> None:
    for model in models:
        crowd.act(model, "evict")
        wait_for(lambda model=model: crowd.state(model) == "cold" and not crowd.models()[model]["num_draining"])


def test_a_stopped_loader_is_replaced_and_delays_no_other_model(crowd, vector):
    stuck, other = MODELS[3], MODELS[4]
    make_cold(crowd, stuck, other)
    log = Log()
    with SIEClient(crowd.grpc) as client, ThreadPoolExecutor() as pool:
        waiting = pool.submit(log.call, client, stuck, vector)
        wait_for(lambda: loader_of(crowd, stuck))
        loader = loader_of(crowd, stuck)
        os.kill(loader, signal.SIGSTOP)
        log.call(client, other, vector)
        waiting.result()
    log.check()
    assert not is_alive(loader)


def test_a_stopped_fork_server_is_replaced_and_delays_no_other_model(crowd, vector):
    make_cold(crowd, MODELS[3])
    (before,) = fork_server_ids(crowd.settings.status_dir)
    before.send(signal.SIGSTOP)
    log = Log()
    with SIEClient(crowd.grpc) as client:
        log.call(client, MODELS[3], vector)
    log.check()
    assert not before.is_alive
    wait_for(lambda: fork_server_ids(crowd.settings.status_dir) != [before])


@contextmanager
def never_loading(crowd: Crowd, model: str) -> Iterator[None]:
    """Hold the lock of the model's weights, for which a loader waits."""
    with (crowd.settings.status_dir / f"{triton_name(model)}.cpu.weights").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def test_an_endless_load_can_be_evicted_and_delays_no_other_model(crowd):
    endless, other = MODELS[3], MODELS[4]
    make_cold(crowd, endless, other)
    with (
        never_loading(crowd, endless),
        SIEClient(crowd.grpc, retry=False) as client,
        ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(told, client, endless)
        wait_for(lambda: loader_of(crowd, endless))
        loader = loader_of(crowd, endless)
        assert client.encode(other, TEXT, timeout=60)["dense"].shape == (1024,)
        crowd.act(endless, "evict")
        wait_for(lambda: not is_alive(loader))
        waiting.result()


def told(client: SIEClient, model: str) -> None:
    with pytest.raises(SIEError):
        client.encode(model, TEXT, timeout=120)
