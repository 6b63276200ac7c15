"""Faults by a seeded schedule: processes that are killed or stopped, and a machine and clients that misbehave."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress

import click
import numpy as np
import psutil

from tests.soak import callers, machine
from tests.soak.clients import OF_HUB, SPOILED
from tests.soak.history import Happened
from tests.soak.targets import Cluster, OneServer, Target

# Durations of a stop, and of a condition, in seconds.
STOP_S, CONDITION_S = 3.0, 5.0

# Shortest and longest rest before a fault, in seconds: longer than the service takes to be back.
REST_S = (10.0, 16.0)

Fault = Callable[[Target, np.random.Generator], Happened]

# Lasts for as long as it is entered.
Condition = Callable[[Target, np.random.Generator], AbstractContextManager[None]]

CONDITIONS: Mapping[str, Condition] = {
    "memory ballast": machine.ballast,
    "starved CPU": machine.starved,
    "no file handles": machine.no_handles,
    "clock jumps": machine.clock_jumps,
    "spoiled records": machine.spoiled_records,
    "half-open connections": callers.half_open,
    "slow reader": callers.slow_reader,
    "oversized body": callers.oversized,
    "cancelled requests": callers.cancelled,
    "flood": callers.flood,
    "endless pass": callers.endless,
}

# Clients of a model that a fault takes away.
HURTS = {
    "truncated weights": frozenset({SPOILED}),
    "exchanged weights": frozenset({SPOILED}),
    "faulty hub": frozenset({OF_HUB}),
}


def schedule(
    target: Target, seed: int, only: Collection[str] = (), rest_s: tuple[float, float] = REST_S
) -> Iterator[tuple[float, str, Fault]]:
    """Yield pauses in seconds, and the faults after them, for ever: all once in a random order, then again.

    `only`: names of the faults; if empty, all are. `rest_s`: shortest and longest pause.
    """
    rng = np.random.default_rng(seed)
    faults = {f"kill {part}": killing(part) for part in target.parts}
    faults |= {f"stop {part}": stopping(part) for part in target.parts}
    faults |= {name: during(name, condition) for name, condition in conditions_of(target).items()}
    if unknown := {*only} - {*faults}:
        raise click.ClickException(f"--fault {min(unknown)}: here there are {', '.join(faults)}")
    faults = {name: fault for name, fault in faults.items() if not only or name in only}
    while True:
        for name in rng.permutation(sorted(faults)):
            yield float(rng.uniform(*rest_s)), str(name), faults[str(name)]


def conditions_of(target: Target) -> dict[str, Condition]:
    found = {**CONDITIONS}
    if machine.can_be_filled(machine.SHM):
        found["full /dev/shm"] = machine.full_shm
    if machine.can_be_filled(target.root):
        found["full disk"] = machine.full_disk
    if isinstance(target, OneServer):
        found["truncated weights"] = machine.truncated_weights
        found["exchanged weights"] = machine.exchanged_weights
        found["faulty hub"] = machine.faulty_hub
    if isinstance(target, Cluster):
        found["faulty object store"] = machine.faulty_store
    return found


def chosen(target: Target, part: str, rng: np.random.Generator) -> psutil.Process | None:
    found = target.of(part)
    return found[rng.integers(len(found))] if found else None


def killing(part: str) -> Fault:
    def kill(target: Target, rng: np.random.Generator) -> Happened:
        process, now = chosen(target, part, rng), time.monotonic()
        with suppress(psutil.Error):
            if process is not None:
                process.kill()
        return Happened(f"kill {part}", now, time.monotonic(), target.hurt_by(part), target.is_cold_after(part))

    return kill


def stopping(part: str) -> Fault:
    def stop(target: Target, rng: np.random.Generator) -> Happened:
        process, began = chosen(target, part, rng), time.monotonic()
        with suppress(psutil.Error):
            if process is not None:
                process.suspend()
        time.sleep(STOP_S)
        with suppress(psutil.Error):
            if process is not None:
                process.resume()
        # Triton takes a stage that stands still for dead; others only wait.
        hurts = target.hurt_by(part) if part == "stage" else frozenset()
        return Happened(f"stop {part}", began, time.monotonic(), hurts)

    return stop


def during(name: str, condition: Condition) -> Fault:
    def happen(target: Target, rng: np.random.Generator) -> Happened:
        began = time.monotonic()
        with condition(target, rng):
            time.sleep(CONDITION_S)
        return Happened(name, began, time.monotonic(), HURTS.get(name, frozenset()))

    return happen
