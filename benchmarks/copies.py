"""Measure texts/s of one busy model on 1, 2, 4 and 8 GPUs that are pretended: passes of 20 ms that take no core.

Server, stages and workers are real; the model gets its copies from the controller.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import tritonclient.grpc as triton
import yaml

from benchmarks.ports import ports_of_a_server
from benchmarks.preprocess import infer, static_file, tensor
from benchmarks.tables import markdown_table, print_table
from benchmarks.texts import texts
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.companions import controller, fork_servers
from sie_triton.server.launch import Server
from sie_triton.settings import Settings, read_settings

MODEL = "bench/busy"
NUMS_OF_GPUS = (1, 2, 4, 8)
PASS_S = 0.02

# Texts of a pass: so few that the clients crowd the model on each number of GPUs.
PER_PASS = 2

# Python modules that pretend the GPUs to every process of a server.
PRETENDED = Path(__file__).parents[1] / "tests" / "residency" / "pretended_gpus"

COLUMNS = ("GPUs", "workers", "texts/s", "of what the passes allow", "of one GPU")


def run(*, clients: int, seconds: float, output: Path | None) -> None:
    """Measure each number of GPUs, print a table and one line of JSON, and write `output` if given."""
    rates, workers = {}, {}
    for num_gpus in NUMS_OF_GPUS:
        with tempfile.TemporaryDirectory() as scratch, served(Path(scratch), num_gpus) as settings:
            rates[num_gpus], workers[num_gpus] = measure(settings, num_gpus, clients, seconds)
    rows = [
        (str(num), str(workers[num]), f"{each:.0f}", f"{each * PASS_S / PER_PASS / num:.2f}", f"{each / rates[1]:.2f}")
        for num, each in rates.items()
    ]
    title = f"{clients} clients of one text, passes of {1000 * PASS_S:g} ms with {PER_PASS} texts"
    print_table(title, COLUMNS, rows)
    if output is not None:
        output.write_text(f"{title} (`scripts/bench --what copies`).\n\n{markdown_table(COLUMNS, rows)}\n")
    print(json.dumps(rates))


@contextmanager
def served(scratch: Path, num_gpus: int) -> Iterator[Settings]:
    """Start a server of one model, and its controller, on a machine that pretends so many GPUs."""
    models = scratch / "models"
    models.mkdir()
    (models / f"{triton_name(MODEL)}.yaml").write_text(
        yaml.safe_dump({"sie_id": MODEL, **static_file(scratch / "static")})
    )
    path = os.pathsep.join(filter(None, (str(PRETENDED), os.environ.get("PYTHONPATH"))))
    pretended = {"PYTHONPATH": path, "PRETENDED_GPUS": str(num_gpus), "PRETENDED_PASS_S": str(PASS_S)}
    with environment(pretended):
        settings = read_settings(
            data_dir=scratch / "data",
            models_dir=models,
            device=",".join(f"cuda:{number}" for number in range(num_gpus)),
            max_batch_requests=PER_PASS,
            memory_limit_bytes=40 << 30,
            **ports_of_a_server(),
        )
        write_repository(scratch / "repository", settings, [MODEL], runtime=settings.runtime)
        with fork_servers(settings, ()), Server(settings, scratch / "repository") as server:
            server.wait_ready()
            with controller(settings, server.control_token):
                yield settings


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def measure(settings: Settings, num_gpus: int, num_clients: int, seconds: float) -> tuple[float, int]:
    """Return texts/s of the clients, each of which sends one text after another, and the number of workers.

    The measurement begins once each GPU has a copy, or no more come.
    """
    address = f"{settings.host}:{settings.grpc_port}"
    infer(address, MODEL, texts(1))
    began, ended = float("inf"), float("inf")

    def ask_on(number: int) -> int:
        num_counted = 0
        with triton.InferenceServerClient(address) as client:
            for _ in count():
                client.infer(triton_name(MODEL), [tensor(texts(1))])
                now = time.perf_counter()
                if now >= ended:
                    return num_counted
                num_counted += now >= began
        raise AssertionError

    with ThreadPoolExecutor(num_clients) as pool:
        clients = [pool.submit(ask_on, number) for number in range(num_clients)]
        try:
            num_copies = copies_of_all(settings, num_gpus - 1)
        finally:
            began = time.perf_counter()
            ended = began + seconds
        return sum(client.result() for client in clients) / seconds, 1 + num_copies


def copies_of_all(settings: Settings, most: int, patience_s: float = 20) -> int:
    """Return the number of copies once there are `most`, or none has come for a while."""
    num_copies, since = 0, time.monotonic()
    while num_copies < most and time.monotonic() - since < patience_s:
        time.sleep(0.5)
        (model,) = ask(settings, "/v1/models")["models"]
        if len(model["copies"]) > num_copies:
            num_copies, since = len(model["copies"]), time.monotonic()
    return num_copies
