"""Compare a cluster of three workers on this machine with its simulation.

Each worker computes on a device of its own, as it would in a cluster: its forward passes take a given time, and next to
nothing of the cores, which clients, gateway, queue and workers share here. Closed loops measure what Triton and the
queue add to a request, and the largest throughput. Poisson arrivals at shares of it are played, and the simulation gets
the same.
"""

import asyncio
import json
import platform
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import yaml
from rich.console import Console

from benchmarks.cluster import address_of
from benchmarks.library_comparison import dense_file
from benchmarks.perf_analyzer import input_of
from benchmarks.ports import free_ports
from benchmarks.preprocess import DIM, saved
from benchmarks.simulation.load import Arrivals, arrivals, zipf
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.run import OURS, Simulation
from benchmarks.sleeping import ITEM_S, PASS_S
from benchmarks.tables import Figures, markdown_table, print_table
from benchmarks.texts import texts
from sie_triton.cluster.up import cluster
from sie_triton.contract.names import triton_name
from sie_triton.models.families import FAMILIES_GROUP
from sie_triton.settings import read_settings
from sie_triton.system.host.container import num_processors

NUM_WORKERS, NUM_MODELS = 3, 6
FAMILY = "benchmarks.sleeping:Sleeping"
MODELS = [f"bench/sleeping-{number}" for number in range(NUM_MODELS)]
NAMES = [triton_name(each) for each in MODELS]

# Clients of the closed loops: one request at a time, and saturation.
ALONE, MANY = 1, 64

# Shares of the measured throughput that the open loops offer.
LOADS = (0.4, 0.6, 0.8)

NUM_TEXTS, SEED = 512, 1

# Time that the simulated cluster has to load all models before the arrivals, in seconds.
WARM_UP_S = 60.0

# Pause before a measurement, in seconds: what came before ends.
SETTLE_S = 2.0

COLUMNS = ("load", "requests/s", "p50 ms", "p99 ms")

# Requests of one text whose pass takes a fixed time; a call of each model runs at full speed.
DEVICE = Parameters(
    texts_of_request=1,
    call_s=PASS_S,
    request_s=ITEM_S,
    call_sigma=0.0,
    lanes=NUM_MODELS,
    num_tenants=1,
    model_gb=0.1,
    slow_load_ratio=0.0,
)


def run(*, seconds: float, output: Path | None) -> None:
    """Measure, print a table and one line of JSON, and write `output` if given. Each open loop takes `4 * seconds`."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch, served(Path(scratch)) as (address, of_triton):
        parameters, throughput = measured(address, of_triton, seconds)
        for load in LOADS:
            asked = arrivals(
                load * throughput,
                4 * seconds,
                NUM_MODELS,
                exponent=1.0,
                num_tenants=1,
                scenario="steady",
                rng=np.random.default_rng(SEED),
            )
            Console(stderr=True).print(f"load {load:.0%}")
            time.sleep(SETTLE_S)
            real = asyncio.run(played(address, asked))
            rows += rows_of(f"{load:.0%}", real, simulated(parameters, asked))
    title = f"{NUM_WORKERS} workers, {NUM_MODELS} models, {throughput:.0f} requests/s at most"
    print_table(title, COLUMNS, rows)
    if output is not None:
        output.write_text(markdown(title, rows, parameters, f"scripts/bench --what simulated --seconds {seconds:g}"))
    print(
        json.dumps({"rows": rows, "call_s": parameters.call_s, "queue_s": parameters.queue_s, "throughput": throughput})
    )


@contextmanager
def served(scratch: Path) -> Iterator[tuple[str, str]]:
    """Run the cluster with all models in memory; yield the gRPC addresses of its gateway and of one of its Tritons."""
    models = scratch / "models"
    models.mkdir()
    file = dense_file(str(saved(scratch / "static")), DIM)
    file["profiles"]["default"]["adapter_path"] = FAMILY
    for name, model in zip(NAMES, MODELS, strict=True):
        (models / f"{name}.yaml").write_text(yaml.safe_dump({"sie_id": model, **file}))
    http, grpc, config = free_ports(3)
    given = {"door_port": http, "grpc_port": grpc, "config_port": config, "door_workers": 1, "models_dir": models}
    settings = read_settings(data_dir=scratch / "data", device="cpu", **given)
    with installed_family(), cluster(settings, MODELS, NUM_WORKERS, lambda _: None) as workers:
        with triton.InferenceServerClient(address_of(settings)) as client:
            for name in NAMES * 3:
                client.infer(name, [input_of("text", ["hello"])])
        yield address_of(settings), address_of(workers[0])


@contextmanager
def installed_family() -> Iterator[None]:
    """Install the sleeping family for the time of a run, because Triton's stubs import only what is installed."""
    packages = Path(sysconfig.get_path("purelib"))
    directory, path = packages / "sleeping-1.dist-info", packages / "sleeping.pth"
    directory.mkdir(exist_ok=True)
    (directory / "entry_points.txt").write_text(f"[{FAMILIES_GROUP}]\nsleeping = {FAMILY}\n")
    path.write_text(str(Path(__file__).parents[1]))
    try:
        yield
    finally:
        path.unlink()
        shutil.rmtree(directory)


def measured(address: str, of_triton: str, seconds: float) -> tuple[Parameters, float]:
    """Return the parameters of this cluster, and its throughput in requests per second."""
    found = []
    for asked, clients in ((of_triton, ALONE), (address, ALONE), (address, MANY)):
        Console(stderr=True).print(f"{clients} clients")
        time.sleep(SETTLE_S)
        found.append(asyncio.run(closed(asked, clients, seconds)))
    call_s, request_s = (each["p50_ms"] / 1000 for each in found[:2])
    parameters = replace(DEVICE, call_s=call_s - ITEM_S, queue_s=max(0.0, request_s - call_s))
    return parameters, found[2]["per_second"]


async def closed(address: str, clients: int, seconds: float) -> Figures:
    """Let each client ask for one text at a time, of models by Zipf's law."""
    rng, asked, latencies = np.random.default_rng(SEED), texts(NUM_TEXTS), list[float]()
    models = rng.choice(NUM_MODELS, 4096, p=zipf(NUM_MODELS, 1.0)).tolist()
    numbers, began = count(), time.monotonic()
    async with triton_aio.InferenceServerClient(address) as client:

        async def ask() -> None:
            while time.monotonic() < began + seconds:
                number = next(numbers)
                name, text = NAMES[models[number % len(models)]], asked[number % len(asked)]
                since = time.perf_counter()
                await client.infer(name, [input_of("text", [text])])
                latencies.append(time.perf_counter() - since)

        await asyncio.gather(*(ask() for _ in range(clients)))
    return figures(latencies, time.monotonic() - began)


async def played(address: str, asked: Arrivals) -> Figures:
    """Send requests at their times, whether or not earlier ones are answered; latencies count from these times."""
    latencies, pending = list[float](), list[asyncio.Task[None]]()
    of = texts(NUM_TEXTS)
    async with triton_aio.InferenceServerClient(address) as client:
        began = time.perf_counter()

        async def ask(number: int, model: str, due: float) -> None:
            await client.infer(model, [input_of("text", [of[number % len(of)]])])
            latencies.append(time.perf_counter() - due)

        for number, (at, model) in enumerate(zip(asked.times.tolist(), asked.models.tolist(), strict=True)):
            due = began + at
            if (left_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(left_s)
            pending.append(asyncio.create_task(ask(number, NAMES[model], due)))
        await asyncio.gather(*pending)
        passed_s = time.perf_counter() - began
    return figures(latencies, passed_s)


def simulated(parameters: Parameters, asked: Arrivals) -> Figures:
    """Simulate the arrivals, with models of the same names, after one request for each model that loads it."""
    times = np.concatenate([np.arange(NUM_MODELS) * 1.0, asked.times + WARM_UP_S])
    models = np.concatenate([np.arange(NUM_MODELS), asked.models])
    both = Arrivals(times, models, np.zeros(len(times), np.int64), NAMES)
    simulation = Simulation(parameters, both, NUM_WORKERS, OURS, since_s=WARM_UP_S)
    simulation.run()
    latencies = simulation.book.latencies_s
    return figures(latencies, max(asked.ends_at, simulation.book.last_answer_at - WARM_UP_S))


def figures(latencies_s: Sequence[float], passed_s: float) -> Figures:
    p50_s, p99_s = np.percentile(latencies_s, (50, 99))
    return {"per_second": len(latencies_s) / passed_s, "p50_ms": 1000 * float(p50_s), "p99_ms": 1000 * float(p99_s)}


def rows_of(load: str, real: Figures, of_simulation: Figures) -> list[list[str]]:
    ratios = [f"{of_simulation[name] / real[name]:.2f}" for name in real]
    shown = [[f"{value:.1f}" for value in each.values()] for each in (real, of_simulation)]
    return [[f"{load}: real", *shown[0]], ["simulated", *shown[1]], ["simulated ÷ real", *ratios]]


def markdown(title: str, rows: Sequence[Sequence[str]], parameters: Parameters, command: str) -> str:
    text = (
        f"A cluster of {NUM_WORKERS} workers with {NUM_MODELS} models, one text a request, on "
        f"{num_processors()} cores ({platform.machine()}). A forward pass takes "
        f"{1000 * PASS_S:.0f} ms and {1000 * ITEM_S:.0f} ms for each text, in which the cores are free. "
        f"With one client, Triton adds {1000 * (parameters.call_s - PASS_S):.1f} ms to a pass, and the queue "
        f"{1000 * parameters.queue_s:.1f} ms to a request: measured before. Loads are shares of the "
        f"throughput of {MANY} clients. *÷*: ratio of the two. Printed by `{command}`."
    )
    return f"# {title}\n\n{text}\n\n{markdown_table(COLUMNS, rows)}"
