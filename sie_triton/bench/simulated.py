"""Compare a cluster of three workers on this machine with its simulation.

The first part measures the parameters in closed loops. The second one plays Poisson arrivals at half of the measured
throughput, which the simulation then gets, too. Clients, gateway, queue and workers share the cores, and so they do in
the simulation.
"""

import asyncio
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import yaml
from rich.console import Console

from sie_triton.bench.cluster import TRITON, address_of, cpu_s
from sie_triton.bench.library_comparison import tiny_file
from sie_triton.bench.ports import free_ports
from sie_triton.bench.tables import Figures, markdown_table, print_table
from sie_triton.cluster.up import cluster
from sie_triton.names import triton_name
from sie_triton.perf.perf_analyzer import input_of
from sie_triton.perf.workload import texts
from sie_triton.settings import Settings, read_settings
from sie_triton.simulation.load import Arrivals, arrivals, zipf
from sie_triton.simulation.parameters import Parameters
from sie_triton.simulation.run import OURS, Simulation

NUM_WORKERS, NUM_MODELS = 3, 6
MODELS = [f"bench/tiny-{number}" for number in range(NUM_MODELS)]
NAMES = [triton_name(each) for each in MODELS]

# Clients of the closed loops: one request at a time, about as many as wait at half of the throughput, and saturation.
ALONE, MIDDLE, MANY = 1, 8, 64

# Share of the measured throughput that the open loop offers.
LOAD = 0.5

NUM_TEXTS, SEED = 512, 1

# Time that the simulated cluster has to load all models before the arrivals, in seconds.
WARM_UP_S = 60.0

# Pause before a measurement, in seconds: what came before ends.
SETTLE_S = 2.0

JOINED = re.compile(r"^sie_sidecar_joined_requests_(sum|count) ([\d.e+]+)$", re.MULTILINE)

COLUMNS = ("", "requests/s", "p50 ms", "p99 ms")
OF_PARAMETERS = ("shared_lanes", "call_s", "request_s", "call_sigma", "queue_work_s", "queue_s")


@dataclass(frozen=True, slots=True)
class Loop:
    """A closed loop.

    `triton_s` and `queue_s` are the processor's seconds of one request, of the Tritons and of all else. `sigma` is the
    standard deviation of the logarithm of a latency.
    """

    per_second: float
    p50_s: float
    sigma: float
    triton_s: float
    queue_s: float
    num_joined: float


def run(*, seconds: float, output: Path | None) -> None:
    """Measure, print a table and one line of JSON, and write `output` if given. The open loop takes `2 * seconds`."""
    with tempfile.TemporaryDirectory() as scratch, served(Path(scratch)) as (address, workers):
        parameters, throughput = measured(address, workers, seconds)
        asked = arrivals(
            LOAD * throughput,
            2 * seconds,
            NUM_MODELS,
            exponent=1.0,
            num_tenants=1,
            scenario="steady",
            rng=np.random.default_rng(SEED),
        )
        time.sleep(SETTLE_S)
        real = asyncio.run(played(address, asked))
    rows = rows_of(real, simulated(parameters, asked))
    title = f"{NUM_WORKERS} workers, {NUM_MODELS} models, {LOAD:.0%} of {throughput:.0f} requests/s"
    print_table(title, COLUMNS, rows)
    if output is not None:
        output.write_text(markdown(title, rows, parameters, f"scripts/bench --what simulated --seconds {seconds:g}"))
    print(json.dumps({"rows": rows, "parameters": asdict(parameters)}))


@contextmanager
def served(scratch: Path) -> Iterator[tuple[str, list[Settings]]]:
    """Run the cluster with all models in memory; yield its gateway's gRPC address, and its workers."""
    models = scratch / "models"
    models.mkdir()
    file = tiny_file(scratch)
    for name, model in zip(NAMES, MODELS, strict=True):
        (models / f"{name}.yaml").write_text(yaml.safe_dump({"sie_id": model, **file}))
    http, grpc, config = free_ports(3)
    given = {"door_port": http, "grpc_port": grpc, "config_port": config, "door_workers": 1, "models_dir": models}
    settings = read_settings(data_dir=scratch / "data", device="cpu", engine="torch", **given)
    with cluster(settings, MODELS, NUM_WORKERS, lambda _: None) as workers:
        with triton.InferenceServerClient(address_of(settings)) as client:
            for name in NAMES * 3:
                client.infer(name, [input_of("text", ["hello"])])
        yield address_of(settings), workers


def measured(address: str, workers: Sequence[Settings], seconds: float) -> tuple[Parameters, float]:
    """Return the parameters of this cluster, and its throughput in requests per second."""
    console = Console(stderr=True)
    idle = idle_cores(seconds)
    loops = {}
    for clients in (ALONE, MIDDLE, MANY):
        console.print(f"{clients} clients")
        time.sleep(SETTLE_S)
        loops[clients] = asyncio.run(closed(address, workers, clients, seconds, idle))
    return parameters_of(loops, sum(idle.values())), loops[MANY].per_second


def parameters_of(loops: Mapping[int, Loop], idle_cores: float) -> Parameters:
    """Return the parameters that closed loops of ALONE, MIDDLE and MANY clients have; `idle_cores` compute always.

    A call alone takes `call_s + request_s` of a core, one of n requests `call_s + n * request_s`.
    """
    alone, many = loops[ALONE], loops[MANY]
    call_s = max(0.0, (alone.triton_s - many.triton_s) / (1 - 1 / max(1.001, many.num_joined)))
    request_s = max(1e-5, alone.triton_s - call_s)
    return Parameters(
        texts_of_request=1,
        call_s=call_s,
        request_s=request_s,
        queue_s=max(0.0, alone.p50_s - alone.triton_s - alone.queue_s),
        queue_work_s=loops[MIDDLE].queue_s,
        shared_lanes=len(os.sched_getaffinity(0)) - idle_cores,
        call_sigma=alone.sigma,
        num_tenants=1,
        model_gb=0.1,
        slow_load_ratio=0.0,
    )


def idle_cores(seconds: float) -> dict[str, float]:
    """Return the cores that each component uses without requests."""
    time.sleep(SETTLE_S)
    before, began = cpu_s(), time.monotonic()
    time.sleep(seconds)
    return {name: (now - before[name]) / (time.monotonic() - began) for name, now in cpu_s().items()}


async def closed(
    address: str, workers: Sequence[Settings], clients: int, seconds: float, idle: Mapping[str, float]
) -> Loop:
    """Let each client ask for one text at a time, of models by Zipf's law."""
    rng, asked, latencies = np.random.default_rng(SEED), texts(NUM_TEXTS), list[float]()
    models = rng.choice(NUM_MODELS, 4096, p=zipf(NUM_MODELS, 1.0)).tolist()
    numbers, ends_at = count(), time.monotonic() + seconds
    before, client_s, began, joined = cpu_s(), time.process_time(), time.monotonic(), joined_calls(workers)
    async with triton_aio.InferenceServerClient(address) as client:

        async def ask() -> None:
            while time.monotonic() < ends_at:
                number = next(numbers)
                name, text = NAMES[models[number % len(models)]], asked[number % len(asked)]
                since = time.perf_counter()
                await client.infer(name, [input_of("text", [text])])
                latencies.append(time.perf_counter() - since)

        await asyncio.gather(*(ask() for _ in range(clients)))
    passed_s, num = time.monotonic() - began, len(latencies)
    used = {name: now - before[name] - idle[name] * passed_s for name, now in cpu_s().items()}
    of_queue = sum(used.values()) - used[TRITON] + time.process_time() - client_s
    requests, calls = (now - then for now, then in zip(joined_calls(workers), joined, strict=True))
    num_calls = num - requests + calls
    return Loop(
        per_second=num / passed_s,
        p50_s=float(np.median(latencies)),
        sigma=float(np.std(np.log(latencies))),
        triton_s=used[TRITON] / num,
        queue_s=of_queue / num,
        num_joined=num / num_calls,
    )


def joined_calls(workers: Sequence[Settings]) -> tuple[float, float]:
    """Return the number of requests that waited for a call so far, and that of their calls, of all workers."""
    total = {"sum": 0.0, "count": 0.0}
    for each in workers:
        with urlopen(f"http://{each.inner_host}:{each.worker_metrics_port}/metrics") as response:
            for name, value in JOINED.findall(response.read().decode()):
                total[name] += float(value)
    return total["sum"], total["count"]


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


def rows_of(real: Figures, of_simulation: Figures) -> list[list[str]]:
    ratios = [f"{of_simulation[name] / real[name]:.2f}" for name in real]
    shown = [[f"{value:.1f}" for value in each.values()] for each in (real, of_simulation)]
    return [["real", *shown[0]], ["simulated", *shown[1]], ["simulated ÷ real", *ratios]]


def markdown(title: str, rows: Sequence[Sequence[str]], parameters: Parameters, command: str) -> str:
    head = (
        f"A cluster of {NUM_WORKERS} workers with {NUM_MODELS} tiny models, one text a request, on "
        f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}) that clients and all processes share. The "
        f"parameters were measured before, in closed loops of {ALONE}, {MIDDLE} and {MANY} clients. *÷*: ratio of the "
        f"two. Printed by `{command}`."
    )
    of = [[name, f"{getattr(parameters, name):.5f}"] for name in OF_PARAMETERS]
    return f"# {title}\n\n{head}\n\n{markdown_table(COLUMNS, rows)}\n{markdown_table(('parameter', ''), of)}"
