"""Recovery without help after processes, the controller among them, are killed or stopped."""

import asyncio
import os
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from sie_triton import SIEClient
from sie_triton.client.failures import StageDied
from sie_triton.contract.names import triton_name
from sie_triton.doors.triton import TritonBackend
from sie_triton.errors import ServerError, SIEError
from sie_triton.records.status import Record, records_of
from sie_triton.system.processes.pids import is_alive
from tests.residency.conftest import EXTRACTOR, LONG, MODELS, TEXT, Crowd, answer, busy, wait_for

LONG_TEXT = " ".join([TEXT] * 20)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=LONG)])
def test_a_killed_or_stopped_worker_fails_no_request(crowd, vector, sent, rounds):
    model = EXTRACTOR
    with SIEClient(crowd.grpc) as client:
        answer(client, model)
    with busy(crowd, model, vector) as log:
        for _ in range(rounds):
            wait_for(lambda: crowd.state(model) == "resident")
            worker = crowd.models()[model]["worker_pid"]
            os.kill(worker, sent)
            wait_for(lambda worker=worker: is_back(crowd, model, worker))
    log.check()


def test_stages_that_die_are_healed(crowd, vector):
    """One stage of each of three models dies.

    Triton keeps a request that the stage had deferred for ever: here every one has a timeout.
    """
    stages = dict(zip(MODELS[2:5], ("preprocess", "inference", "postprocess"), strict=True))
    regions, pids = num_regions(crowd), {}

    def is_sent(model: str) -> bool:
        """A stage that was just replaced is gone before the signal, or beside its successor."""
        with suppress(ValueError, ProcessLookupError):
            (record,) = records_of(crowd.settings.status_dir, triton_name(model), stages[model])
            os.kill(record["pid"], signal.SIGKILL)
            pids[model] = record["pid"]
        return model in pids

    with SIEClient(crowd.grpc, timeout=20) as client, ExitStack() as clients:
        for model in stages:
            client.encode(model, TEXT)
        for model in stages:
            clients.enter_context(busy(crowd, model, vector, clients=1, timeout=2))
        for model in stages:
            wait_for(lambda model=model: is_sent(model))

        def answers(model: str) -> bool:
            with suppress(SIEError):
                return float(client.encode(model, TEXT, timeout=2)["dense"] @ vector) > 0.9999
            return False

        for model in stages:
            wait_for(lambda model=model: answers(model))
    assert not any(map(is_alive, pids.values()))
    wait_for(lambda: num_regions(crowd) <= regions, 20)


def test_a_door_does_not_wait_for_a_stage_that_died_with_its_request(crowd):
    """Triton would never answer, because the stage had deferred the request."""
    model, many = MODELS[2], [{"text": LONG_TEXT}] * 100  # they go in one piece

    async def ask() -> None:
        async with TritonBackend(crowd.settings) as door:
            await door.encode(model, [{"text": TEXT}], 60, {})
            (record,) = records_of(crowd.settings.status_dir, triton_name(model), "inference")
            before = record["num_deferred"]
            asking = asyncio.create_task(door.encode(model, many, 600, {}))
            await asyncio.to_thread(wait_for, lambda: record_of(crowd, model, record["pid"])["num_deferred"] > before)
            os.kill(record["pid"], signal.SIGKILL)
            with pytest.raises(StageDied, match="a process of the model died before it answered"):
                await asyncio.wait_for(asking, 300)

    asyncio.run(ask())


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=LONG)])
def test_a_controller_killed_during_a_load_fails_no_request(crowd, vector, rounds):
    model, other = MODELS[5], MODELS[0]
    for _ in range(rounds):
        wait_for(crowd.answers)
        with busy(crowd, other, vector, clients=2) as log, SIEClient(crowd.grpc) as client:
            client.encode(model, TEXT)
            crowd.act(model, "evict")
            wait_for(lambda: crowd.state(model) == "cold")
            acting = threading.Thread(target=suppressing(lambda: crowd.act(model, "load")))
            acting.start()
            time.sleep(0.3)
            before = crowd.companion.pid
            os.kill(before, signal.SIGKILL)
            acting.join()
            wait_for(lambda before=before: crowd.companion.pid != before and crowd.answers())
            wait_for(lambda: crowd.state(model) in ("cold", "resident"))
            wait_for(lambda: crowd.models()[model]["num_draining"] == 0)
            log.call(client, model, vector)
            wait_for(lambda: crowd.state(model) == "resident")
        log.check()


def is_back(crowd: Crowd, model: str, worker: int) -> bool:
    now = crowd.models()[model]
    return now["state"] == "resident" and now["worker_pid"] not in (worker, None)


def record_of(crowd: Crowd, model: str, pid: int) -> Record:
    (found,) = (
        each for each in records_of(crowd.settings.status_dir, triton_name(model), "inference") if each["pid"] == pid
    )
    return found


def num_regions(crowd: Crowd) -> int:
    """Return the number of shared memory regions of the Python backend."""
    return len(list(Path("/dev/shm").glob(f"{crowd.server.shm_prefix}*")))


def suppressing(act):
    def run() -> None:
        with suppress(ServerError, OSError):
            act()

    return run
