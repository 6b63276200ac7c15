"""`sie-triton serve`: check the machine, render, start Triton, say where it is, end it cleanly."""

import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from types import FrameType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sie_triton.catalog import triton_name
from sie_triton.device import unused_gpus, visible_gpus
from sie_triton.errors import ServerError
from sie_triton.render.build import selected, write_repository
from sie_triton.server import preflight
from sie_triton.server.companion import controller, nursery, wait_for_controller
from sie_triton.server.launch import Server, clean, lock
from sie_triton.settings import Settings

EXAMPLES = {
    "encode": """\
curl -s {url}/v2/models/{model}/infer -d '{{"inputs": [{{"name": "text", "shape": [1], "datatype": "BYTES", \
"data": ["Hello, world"]}}]}}'""",
    "score": """\
curl -s {url}/v2/models/{model}/infer -d '{{"inputs": [{{"name": "query", "shape": [1], "datatype": "BYTES", \
"data": ["What is it?"]}}, {{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["It is this.", "No."]}}]}}'""",
}


class Stopped(Exception):
    """A signal asked us to end."""


def serve(settings: Settings, names: Sequence[str], *, verbose: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean end, 1 if Triton ended by itself."""
    console = Console(stderr=True)
    # Number GPUs as NVML does, which the controller asks.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    held = lock(settings.data_dir)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _stop)
    try:
        configs = selected(settings, names)
        models = [triton_name(config.sie_id) for config in configs]
        check_machine(settings, len(models))
        repository = clean(settings.data_dir.absolute() / "model_repository")
        clean(settings.status_dir)
        for warning in write_repository(repository, settings, names, runtime=settings.runtime):
            console.print(warning, style="yellow")
        with (
            # Ends last: a worker that ended with it would be replaced by its stage, which takes seconds.
            nursery(settings),
            Server(settings, repository, models, verbose=verbose) as server,
            controller(settings, server.control_token),
        ):
            _wait_ready(server, len(models), console)
            wait_for_controller(settings)
            _introduce(settings, models, server, console)
            task = "encode" if configs[0].tasks.encode else "score"
            print(EXAMPLES[task].format(url=url_of(settings), model=models[0]) + "\n", file=sys.stderr)
            print("SIE ready", flush=True)
            return 1 if server.wait() else 0
    except Stopped:
        return 0
    finally:
        held.close()


def check_machine(settings: Settings, num_models: int) -> None:
    """ServerError with one line for each thing that must be put right first."""
    ports = {
        "http-port": settings.http_port,
        "grpc-port": settings.grpc_port,
        "metrics-port": settings.metrics_port,
        "controller-port": settings.controller_port,
    }
    problems = [
        *preflight.check_python(),
        *preflight.check_ports(settings.host, ports),
        *preflight.check_space(settings.data_dir, num_models),
        *preflight.check_device(
            settings.device,
            settings.runtime.device,
            len(visible_gpus()),
            version("torch"),
            has_nvml=find_spec("pynvml") is not None,
        ),
    ]
    if problems:
        raise ServerError("\n".join(problems))


def _wait_ready(server: Server, num_models: int, console: Console) -> None:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"starting Triton, {num_models} models")
        server.wait_ready(
            lambda ready: progress.update(task, description=f"starting Triton, {ready} of {num_models} models ready")
        )


def _introduce(settings: Settings, models: Sequence[str], server: Server, console: Console) -> None:
    for model in models:
        console.print(f"model    {model}", highlight=False)
    console.print(f"device   {settings.runtime.device}", highlight=False)
    if unused := unused_gpus(settings.runtime.device):
        console.print(unused, style="yellow", highlight=False)
    console.print(f"HTTP     {url_of(settings)}", highlight=False)
    console.print(f"gRPC     {settings.host}:{settings.grpc_port}", highlight=False)
    console.print(f"metrics  http://{settings.host}:{settings.metrics_port}/metrics", highlight=False)
    console.print(f"control  http://{settings.host}:{settings.controller_port}/v1/models", highlight=False)
    console.print(f"log      {server.log_path}\n", highlight=False)


def url_of(settings: Settings) -> str:
    return f"http://{settings.host}:{settings.http_port}"


def _stop(signum: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the orderly end that the first one started.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise Stopped
