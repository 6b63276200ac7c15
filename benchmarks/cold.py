"""Measure the cost of many cold models: start-up, memory, shared memory, and the time of first responses."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import yaml
from rich.console import Console
from rich.progress import Progress

from benchmarks.compare import MODEL
from benchmarks.ports import ports_of_a_server
from benchmarks.tables import markdown_table, print_table
from sie_triton.client import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.memory import processes
from sie_triton.controller.model_control import ModelControl
from sie_triton.models.catalog import starter_set
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.companions import controller, fork_servers, wait_for_controller
from sie_triton.server.launch import Server
from sie_triton.settings import Settings, read_settings
from sie_triton.system.processes.fork_server import fork_server_ids

NUM_FIRST_ANSWERS = 5

# Time within which Triton ends an evicted process, in seconds.
SETTLE_S = 3.0

# Time in which the controller's processor time is measured, in seconds.
SHARE_S = 30.0

HEAD = ("measured in one run", "")


def run(*, models: int, output: Path | None) -> None:
    """Measure with `models` copies of the demo model, print the table, and write `output` if given."""
    with tempfile.TemporaryDirectory() as scratch:
        names = [f"copy/model-{i:03}" for i in range(models)]
        settings = settings_of(Path(scratch), names)
        rows = measure(settings, names, Console(stderr=True))
    print_table(f"{models} cold models", HEAD, rows)
    if output is not None:
        command = f"scripts/bench --what cold --models {models}"
        head = f"{models} cold models, copies of {MODEL}. Printed by `{command}`."
        output.write_text(f"{head}\n\n{markdown_table(HEAD, rows)}")


def measure(settings: Settings, names: Sequence[str], console: Console) -> list[tuple[str, str]]:
    num_models, repository = len(names), settings.data_dir / "repository"
    write_repository(repository, settings, names, runtime=settings.runtime)
    shm_before = shutil.disk_usage("/dev/shm").used
    started = time.monotonic()
    with (
        fork_servers(settings, ()),
        Server(settings, repository) as server,
        controller(settings, server.control_token) as beside,
        Progress(console=console, transient=True) as progress,
    ):
        task = progress.add_task("starting", total=num_models)
        server.wait_ready(lambda ready: progress.update(task, completed=ready))
        wait_for_controller(settings)
        ready_s = time.monotonic() - started
        unique = sum(map(unique_bytes, processes(server.pid)[1:]))
        shared = sum(unique_bytes(process.pid) for process in fork_server_ids(settings.stub_dir))
        shm = shutil.disk_usage("/dev/shm").used - shm_before
        answers = first_answers(settings, server.control_token, names[:NUM_FIRST_ANSWERS])
        time.sleep(ControllerLimits.after_death_s)  # the controller rests once no process has died for so long
        controller_share = cpu_share(beside.pid)
    return [
        ("start-up until all are ready", f"{ready_s:.1f} s"),
        ("private memory of a model's three processes", f"{unique / num_models / 1e6:.0f} MB"),
        ("private memory of the fork server that forked them", f"{shared / 1e6:.0f} MB"),
        ("shared memory per model", f"{shm / num_models / 1e6:.1f} MB"),
        *answers,
        ("controller's use of one core at rest", f"{controller_share:.1%}"),
    ]


def settings_of(scratch: Path, names: Sequence[str]) -> Settings:
    """Return the settings of a server with a copy of the demo model under each of `names`."""
    file = {
        "weights_path": next(model.weights for model in starter_set() if model.sie_id == MODEL),
        "tasks": {"encode": {"dense": {"dim": 384}}},
        "max_sequence_length": 256,
        "profiles": {"default": {"max_batch_tokens": 16384, "adapter_path": "sentence_transformer"}},
    }
    models_dir = scratch / "models"
    models_dir.mkdir()
    for name in names:
        (models_dir / f"{triton_name(name)}.yaml").write_text(yaml.safe_dump({"sie_id": name, **file}))
    return read_settings(data_dir=scratch / "data", models_dir=models_dir, device="cpu", **ports_of_a_server())


def first_answers(settings: Settings, control_token: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Measure the first responses of models that were never loaded, and of evicted ones."""
    first = []
    with SIEClient(f"{settings.host}:{settings.grpc_port}") as client:
        for name in names:
            asked = time.monotonic()
            client.encode(name, "Hello, world")
            first.append(time.monotonic() - asked)
        again = [cold_answer(settings, control_token, client, name) for name in names]
    return [
        ("first answer of the first model, which is also calibrated", f"{first[0]:.1f} s"),
        (f"first answer of the next {len(first) - 1}, calibrated too, median", f"{statistics.median(first[1:]):.1f} s"),
        ("first answer after an eviction, median", f"{statistics.median(again):.1f} s"),
    ]


def cold_answer(settings: Settings, control_token: str, client: SIEClient, name: str) -> float:
    """Return how many seconds the first response of a model takes that has just been evicted."""
    control = ModelControl(f"{settings.host}:{settings.grpc_port}", control_token)
    control.swap(f"{triton_name(name)}-inference")
    control.close()
    time.sleep(SETTLE_S)
    asked = time.monotonic()
    client.encode(name, "Hello, world")
    return time.monotonic() - asked


def cpu_share(pid: int) -> float:
    """Return the process's CPU use as a fraction of one core."""
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(SHARE_S)
    return (sum(process.cpu_times()[:2]) - before) / SHARE_S


def unique_bytes(pid: int) -> int:
    """Return the process's USS in bytes: the memory that no other process maps."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))
