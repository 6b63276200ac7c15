"""Simulate models on several GPUs, compared with one GPU of their memory: loads that 1,000 requests take, and waits.

Pure policy without a server: the functions by which the controller chooses a device and the models to evict, and those
by which a busy model gets a copy.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.gpu_traffic import LOAD_S, PASS_S, Traffic
from benchmarks.simulation.load import zipf
from benchmarks.tables import markdown_table, print_table
from sie_triton.controller.choice import Device, Resident, place, victims

NUM_MODELS, ROOM_FOR, EXPONENT = 40, 12, 1.0
NUM_REQUESTS, SEED = 100_000, 1

# The numbers of devices that share the memory, and by how much the sizes of models differ, from a half to this much.
NUMS_OF_DEVICES = (1, 2, 4)
SIZES = {"of one size": (1.0, 1.0), "of 0.5 to 1.5": (0.5, 1.5)}

# Requests per second: to all models, and to few that all have room, of which one is busy.
RATE, BUSY_RATE, NUM_BUSY_MODELS = 2.0, 100.0, 8
NUM_TIMED, NUM_WARM = 20_000, 2_000  # the first ones load the models and copies

COLUMNS = ("40 models", *(f"{count} GPU{'s' * (count > 1)}" for count in NUMS_OF_DEVICES))


def run(*, output: Path | None) -> None:
    """Simulate, print a table and one line of JSON, and write `output` if given."""
    rows, found = [], {}
    for name, (least, most) in SIZES.items():
        rng = np.random.default_rng(SEED)
        sizes = (1000 * rng.uniform(least, most, NUM_MODELS)).astype(int).tolist()
        asked = rng.choice(NUM_MODELS, NUM_REQUESTS, p=zipf(NUM_MODELS, EXPONENT)).tolist()
        found[name] = [loads(sizes, asked, count) for count in NUMS_OF_DEVICES]
        rows.append((name, *(f"{each:.0f}" for each in found[name])))
    waits = timed(NUM_MODELS, RATE) | timed(NUM_BUSY_MODELS, BUSY_RATE)
    title = f"Loads per 1,000 requests; room for {ROOM_FOR} in all"
    times = f"Seconds by a clock that is simulated: a pass {PASS_S:g}, a load {LOAD_S:g}"
    timed_rows = [(name, *(f"{each:.3g}" for each in figures)) for name, figures in waits.items()]
    print_table(title, COLUMNS, rows)
    print_table(times, TIMED_COLUMNS, timed_rows)
    if output is not None:
        tables = f"{markdown_table(COLUMNS, rows)}\n\n{times}.\n\n{markdown_table(TIMED_COLUMNS, timed_rows)}"
        output.write_text(f"{title} (`scripts/bench --what placement`).\n\n{tables}\n")
    print(json.dumps(found | waits))


TIMED_COLUMNS = ("", "p50", "p99", "loads per 1,000", "copies")


def timed(num_models: int, rate: float) -> dict[str, tuple[float, ...]]:
    """Return p50, p99, loads per 1,000 requests, and copies, of one GPU and of four, with copies and without."""
    rng = np.random.default_rng(SEED)
    at = np.cumsum(rng.exponential(1 / rate, NUM_TIMED)).tolist()
    models = rng.choice(num_models, NUM_TIMED, p=zipf(num_models, EXPONENT)).tolist()
    figures: dict[str, tuple[float, ...]] = {}
    for count, copies in ((1, False), (4, False), (4, True)):
        traffic = Traffic([1000] * num_models, [ROOM_FOR * 1000 // count] * count, copies=copies)
        traffic.run([*zip(at, models, strict=True)])
        p50, p99 = np.quantile(traffic.latencies[NUM_WARM:], (0.5, 0.99)).tolist()
        name = f"{num_models} models, {rate:g} requests/s, {count} GPU{'s' * (count > 1)}{', copies' * copies}"
        figures[name] = (p50, p99, 1000 * traffic.num_loads / NUM_TIMED, traffic.num_copies)
    return figures


def loads(sizes: Sequence[int], asked: Sequence[int], num_devices: int) -> float:
    """Return the loads per 1,000 requests; `asked` is the model of each request, whose answer takes no time."""
    room = ROOM_FOR * 1000 // num_devices
    devices = [Device(str(number), room, room) for number in range(num_devices)]
    held: list[dict[str, Resident]] = [{} for _ in devices]
    num_loads = 0
    for now, model in enumerate(asked, 1):
        name, wanted = str(model), sizes[model]
        at = next((number for number, models in enumerate(held) if name in models), None)
        if at is None:
            num_loads += 1
            best = place(devices, wanted, now_ns=now, min_residency_ns=0)
            at = devices.index(best)
            for leaving in victims(best.residents, wanted - best.free, now_ns=now, min_residency_ns=0):
                del held[at][leaving]
        held[at][name] = Resident(name, wanted, now, 0)
        used = sum(each.num_bytes for each in held[at].values())
        devices[at] = replace(devices[at], free=room - used, residents=[*held[at].values()])
    return 1000 * num_loads / len(asked)
