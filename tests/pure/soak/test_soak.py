"""The soak's own judgement: what is wrong, missing or unexplained is found, and so is what grows."""

import numpy as np
import pytest

from tests.soak.counters import fallen
from tests.soak.history import BACK_S, FAILED, REFUSED, RIGHT, WRONG, Entry, Happened, check
from tests.soak.leaks import Usage, leaking

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


def test_the_service_is_back_when_every_client_has_a_right_answer_that_was_not_on_its_way():
    entries = [entry(99, 100.4, RIGHT), entry(100, 103, RIGHT), entry(99, 105, RIGHT, "grpc")]
    found = check(entries, (KILLED,), TIMEOUT_S)
    assert found.back_s == {"kill door": [(5.0, "grpc")]}
    assert found.is_good


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
