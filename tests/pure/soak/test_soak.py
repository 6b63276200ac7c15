"""The soak's own judgement: what is wrong, missing or unexplained is found, and so is what grows."""

import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests import soak
from tests.soak.counters import fallen
from tests.soak.history import BACK_S, FAILED, REFUSED, RIGHT, WRONG, Entry, Happened, check
from tests.soak.leaks import Gate, Usage, fastest, leaking

# Prints the seconds that a call of 30 s has at a gateway, and those by which our modules' clock is ahead.
CALLED = """
import asyncio, time, grpc
from tritonclient.grpc import service_pb2
from sie_triton.cluster.gateway.kserve import _left_s
async def left(_, context):
    return str(_left_s(context, service_pb2.ModelInferRequest())).encode()
async def called():
    server, handlers = grpc.aio.server(), {"left": grpc.unary_unary_rpc_method_handler(left)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        print(float(await channel.unary_unary("/x/left")(b"", timeout=30)))
    await server.stop(0)
asyncio.run(called())
print(eval("time.time()", {"time": time, "__name__": "sie_triton.x"}) - time.time())
"""

KILLED = Happened("kill door", 100.0, 100.0, frozenset({"http"}))
TIMEOUT_S = 60.0


def entry(began: float, ended: float, outcome: str, client: str = "http") -> Entry:
    return Entry(client, "m", began, ended, outcome, "" if outcome in (RIGHT, WRONG) else "an error")


def verdict(*entries: Entry, faults: tuple[Happened, ...] = (KILLED,)):
    """Return the verdict on entries, and right answers of both clients after the fault."""
    after = [entry(101, 102, RIGHT), entry(101, 103, RIGHT, "grpc")]
    return check([*entries, *after], faults, TIMEOUT_S)


@pytest.mark.parametrize(
    ("case", "is_good"),
    [
        (entry(99, 101, FAILED), True),  # in progress at the fault
        (entry(100 + BACK_S, 100 + BACK_S + 1, FAILED), True),
        (entry(101 + BACK_S, 102 + BACK_S, FAILED), False),  # it should have been back
        (entry(98, 99, FAILED), False),  # before the fault
        (entry(99, 101, FAILED, "grpc"), False),  # of another client
        (entry(99, 101, REFUSED, "grpc"), True),
        (entry(99, 101, WRONG), False),
        (entry(0, TIMEOUT_S + 1, RIGHT), True),
        (entry(0, TIMEOUT_S + 3, RIGHT), False),  # too late
    ],
)
def test_a_failure_needs_a_fault_of_the_clients_own_process(case, is_good):
    assert verdict(case).is_good == is_good


def test_without_a_fault_no_failure_is_explained():
    assert not verdict(entry(99, 101, FAILED), faults=()).is_good


def test_nothing_is_not_good():
    assert not check([], [], TIMEOUT_S).is_good


def test_the_service_is_back_when_every_client_has_a_right_answer_that_was_not_on_its_way():
    entries = [entry(99, 100.4, RIGHT), entry(100, 103, RIGHT), entry(99, 105, RIGHT, "grpc")]
    found = check(entries, (KILLED,), TIMEOUT_S)
    assert found.back_s == {"kill door": [(5.0, "grpc")]}
    assert found.is_good


def test_the_client_of_the_model_that_is_changed_need_not_be_back_as_soon():
    ended = {"cohere": 103, "changes": 112}
    found = check([entry(100, each, RIGHT, name) for name, each in ended.items()], [KILLED], TIMEOUT_S)
    assert found.back_s == {"kill door": [(3.0, "cohere")]}
    assert found.all_back_s == {"kill door": [12.0]}
    assert found.is_good


def test_after_a_fault_that_cools_all_models_the_first_client_of_each_port_counts():
    cooled = Happened("kill triton", 100, 100, cools=True)
    clients = {"cohere": 106, "openai": 103, "tritonclient": 104, "changes": 120}
    found = check([entry(100, ended, RIGHT, name) for name, ended in clients.items()], [cooled], TIMEOUT_S)
    assert found.back_s == {"kill triton": [(4, "tritonclient")]}
    assert found.all_back_s == {"kill triton": [20]}


@pytest.mark.parametrize(("ended", "seconds"), [(100 + BACK_S + 1, BACK_S + 1), (99.9, float("inf"))])
def test_a_service_that_is_back_too_late_is_not_good(ended, seconds):
    found = check([entry(ended - 0.5, ended, RIGHT), entry(101, 102, RIGHT, "grpc")], (KILLED,), TIMEOUT_S)
    assert found.late == {"kill door": (seconds, "http")}
    assert not found.is_good


def test_a_counter_that_falls_without_a_fault_is_found():
    name = "requests_total", (("route", "/"),)
    samples = [(0.0, {name: 3.0}), (50.0, {name: 4.0}), (101.0, {name: 1.0}), (150.0, {name: 2.0}), (152.0, {})]
    assert fallen(samples, [KILLED]) == []
    assert fallen([*samples, (154.0, {name: 0.0})], [KILLED]) == []  # it was away
    assert len(fallen([(200.0, {name: 3.0}), (202.0, {name: 2.0})], [KILLED])) == 1


def usage(memory_per_hour: float, handles_per_hour: float = 0.0) -> Usage:
    times = np.arange(0, 1200, 2.0)
    noise = np.random.default_rng(0).normal(0, 3, len(times))
    rows = [
        (100 + memory_per_hour * at / 3600 + each, 10 + round(handles_per_hour * at / 3600), 5.0)
        for at, each in zip(times, noise, strict=True)
    ]
    return Usage("process", list(times), rows)


def test_a_process_that_grows_is_found_and_one_that_does_not_is_not():
    assert leaking([usage(0), usage(50)]) == {}
    assert leaking([usage(400)])["process"]["memory, MB"] == pytest.approx(400, rel=0.1)
    assert list(leaking([usage(0, 60)])["process"]) == ["handles"]


def test_the_fastest_growth_is_told():
    assert fastest([]) == {}
    assert fastest([usage(0), usage(400)])["memory, MB"] == (pytest.approx(400, rel=0.1), "process")


def test_a_gate_that_cannot_look_fails_the_run(monkeypatch):
    monkeypatch.setattr("tests.soak.leaks.INTERVAL_S", 0.01)
    looked, gate = threading.Event(), Gate(None)

    def sample() -> None:
        looked.set()
        raise FileNotFoundError("no records")

    monkeypatch.setattr(gate, "sample", sample)
    with pytest.raises(FileNotFoundError), gate.watching():
        assert looked.wait(20)


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_the_soaks_clock_leaves_deadlines_of_grpc_alone(tmp_path, ahead_s):
    """gRPC's C core has the machine's clock, so that a call would have no time left."""
    (tmp_path / "clock").write_bytes(struct.pack("d", ahead_s))
    variables = {
        "PYTHONPATH": str(Path(soak.__file__).with_name("in_processes")),
        "SOAK_CLOCK": str(tmp_path / "clock"),
    }
    command = [sys.executable, "-c", CALLED]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True, timeout=60)
    left_s, ours_s = map(float, done.stdout.split())
    assert 0 < left_s < 60
    assert ours_s == pytest.approx(ahead_s, abs=60)
