"""Simulate models on several GPUs, compared with one GPU of their memory: loads that 1,000 requests take.

Pure policy without a server: the functions by which the controller chooses a device and the models to evict.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.simulation.load import zipf
from benchmarks.tables import markdown_table, print_table
from sie_triton.controller.choice import Device, Resident, place, victims

NUM_MODELS, ROOM_FOR, EXPONENT = 40, 12, 1.0
NUM_REQUESTS, SEED = 100_000, 1

# The numbers of devices that share the memory, and by how much the sizes of models differ, from a half to this much.
NUMS_OF_DEVICES = (1, 2, 4)
SIZES = {"of one size": (1.0, 1.0), "of 0.5 to 1.5": (0.5, 1.5)}

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
    title = f"Loads per 1,000 requests; room for {ROOM_FOR} in all"
    print_table(title, COLUMNS, rows)
    if output is not None:
        output.write_text(f"{title} (`scripts/bench --what placement`).\n\n{markdown_table(COLUMNS, rows)}\n")
    print(json.dumps(found))


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
