"""`sie-triton serve`: check the machine, render, start Triton, print its addresses, and end it cleanly."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from typing import IO

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sie_triton.contract import VERBS
from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import TEXT
from sie_triton.errors import ServerError
from sie_triton.models.catalog import ModelConfig
from sie_triton.models.families import model_of
from sie_triton.models.weights.local_cache import use_local_cache
from sie_triton.pipeline.render.known import list_known
from sie_triton.pipeline.render.models_mirror import bundled, kept_in_sync, mirrored
from sie_triton.pipeline.render.refresh import Refresh, start
from sie_triton.records.preloads import Preloads
from sie_triton.records.serving_file import repository_of
from sie_triton.server import preflight
from sie_triton.server.companions import Say, controller, doors, fork_servers, wait_for_controller, wait_for_door
from sie_triton.server.data_dir import clean, clean_after_predecessor, environment_of, lock, remember
from sie_triton.server.fetch import fetch_preloaded
from sie_triton.server.find_triton import ascii_path
from sie_triton.server.launch import EXIT_TIMEOUT_S, Server
from sie_triton.server.memory_plan import MemoryPlan
from sie_triton.server.terminal import READY, Terminal, report_faults
from sie_triton.settings import Settings
from sie_triton.system.host.device import gpu_name, visible_gpus
from sie_triton.system.host.gpu_memory import check_gpu_names, gpu_type
from sie_triton.system.host.ports import reserved
from sie_triton.system.native.builds import INSTALL
from sie_triton.system.native.loading import kernels_in_use
from sie_triton.system.printing import Console
from sie_triton.system.processes.limits import raise_limit
from sie_triton.system.processes.signals import until_signal
from sie_triton.system.processes.supervisor import Supervisor
from sie_triton.system.telemetry.batches import DIRECTORY as BATCHES
from sie_triton.system.telemetry.spans import check_tracing


def serve(settings: Settings, names: Sequence[str], *, verbose: bool = False) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP. Return 0 after a clean end, 1 if Triton died and cannot be restarted."""
    # Number GPUs as NVML does, because the controller queries NVML.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    use_local_cache(settings.local_cache)
    raise_limit()
    terminal = Terminal.of(settings.log_json)
    held = lock(settings.data_dir)
    stopping = f"requests in progress have up to {EXIT_TIMEOUT_S} s"
    try:
        with until_signal(lambda name: terminal.say(f"stopping: {name}; {stopping}")):
            if num_ended := clean_after_predecessor(held, settings.data_dir):
                terminal.say(f"ended {num_ended} processes that an earlier server had left")
            with ascii_path(settings.data_dir.absolute()) as data_dir:
                return _serve(settings.model_copy(update={"data_dir": data_dir}), names, held, verbose, terminal)
        terminal.say("stopped")
        return 0
    except OSError as exc:
        raise ServerError(preflight.explain(exc, settings.data_dir)) from exc
    except (RuntimeError, MemoryError) as exc:
        if isinstance(exc, RuntimeError) and str(exc) != "can't start new thread":
            raise
        reason = str(exc) or "no memory is left"
        raise ServerError(f"{reason}; raise the limit of processes or of memory (ulimit, or the container's)") from exc
    finally:
        held.close()


def _serve(settings: Settings, names: Sequence[str], held: IO[str], verbose: bool, terminal: Terminal) -> int:
    console, say = terminal.console(), terminal.say
    repository = clean(repository_of(settings.data_dir))
    clean(settings.status_dir)
    shutil.rmtree(settings.data_dir / BATCHES, ignore_errors=True)
    given, settings = settings, bundled(mirrored(settings))
    first = start(settings, names)
    check_machine(settings, len(first.models))
    settings = settings.model_copy(update={"gpu_type": settings.gpu_type or _detected_type(settings)})
    room = MemoryPlan(settings, len(first.models))
    specs = [model.resolve(settings.runtime) for model in first.models]
    for warning in (*first.outcome.warnings, *room.warnings(specs)):
        console.print_line(warning, style="yellow")
    fetch_preloaded(settings, first.models, console)
    server = Server(settings, repository, verbose=verbose, say=say)
    remember(held, server.shm_prefix)
    with (
        reserved(settings.inner_host, (settings.http_port, settings.grpc_port, settings.controller_port)),
        # Ends after the stages: they would replace workers that end before them, which takes seconds.
        fork_servers(settings, specs, say),
        server,
        controller(settings, server.control_token, say),
        # Ends first, as soon as its requests are answered.
        doors(settings, environment_of(settings), say) if settings.door else nullcontext(),
        report_faults(settings.data_dir, say),
        kept_in_sync(given, say),
    ):
        list_known(first.serving, settings)  # takes half a second, in which Triton starts
        _wait_ready(server, len(first.models), console)
        wait_for_controller(settings)
        if settings.door:
            wait_for_door(settings)
        _wait_preloaded(settings, server, console)
        _introduce(settings, first, server, room, console)
        if first.models:
            terminal.show(example(to_try(first).resolve(settings.runtime), url_of(settings)) + "\n")
        terminal.announce(READY)
        return _stay(server, say)


def _stay(server: Server, say: Say) -> int:
    try:
        Supervisor(server, say).keep_running()
    except ServerError as exc:
        say(f"error: {exc}")
        return 1
    return 0


def check_machine(settings: Settings, num_models: int) -> None:
    """Raise ServerError with one line for each problem that must be fixed first."""
    inner = ("http_port", "grpc_port", "metrics_port", "controller_port")
    addresses = {name.replace("_", "-"): (settings.inner_host, getattr(settings, name)) for name in inner}
    if settings.door:
        addresses["door-port"] = settings.host, settings.door_port
    problems = [
        *preflight.check_python(),
        *preflight.check_ports(addresses),
        *preflight.check_space(settings.data_dir, num_models),
        *MemoryPlan(settings, num_models).problems(),
        *preflight.check_device(
            settings.device,
            settings.devices,
            len(visible_gpus()),
            version("torch"),
            has_nvml=find_spec("pynvml") is not None,
            built_for=preflight.cuda_of_torch(),
            driver_cuda=preflight.cuda_of_driver(),
        ),
        *check_gpu_names(settings.devices),
        *check_tracing(settings.telemetry, os.environ),
    ]
    if problems:
        raise ServerError("\n".join(problems))


def _detected_type(settings: Settings) -> str:
    first = settings.devices[0]
    return "" if first == "cpu" else gpu_type(gpu_name(first))


def _wait_ready(server: Server, num_models: int, console: Console) -> None:
    with _waiting(console, f"starting Triton, {num_models} models") as show:
        server.wait_ready(lambda ready: show(f"starting Triton, {ready} of {num_models} models ready"))
        server.check_version()


def _wait_preloaded(settings: Settings, server: Server, console: Console) -> None:
    """Return once no model to preload is loading; its own timeout ends a load that takes too long."""
    with _waiting(console, "loading weights") as show:
        preloads, num_models = Preloads(settings.status_dir, settings.preloaded), len(settings.preloaded)
        while num := preloads.num_loading():
            server.check_alive()
            show(f"loading weights, {num_models - num} of {num_models} models done")
            time.sleep(0.1)


@contextmanager
def _waiting(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with the title; yield a function that replaces the title."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title)
        yield lambda line: progress.update(task, description=line)


def _introduce(settings: Settings, first: Refresh, server: Server, room: MemoryPlan, console: Console) -> None:
    for model in first.models:
        added = f" (added: {model.source})" if first.serving.was_added(model.source) else ""
        console.print_line(f"model    {triton_name(model.sie_id)}{added}")
    for name in sorted(first.forwarded):
        console.print_line(f"forward  {name}, to its endpoint")
    if settings.serve_known:
        once = "once a request to SIE's door or of SIEClient names it"
        console.print_line(f"known    any model of `sie-triton models ls --known`, {once}")
    console.print_line(f"device   {', '.join(settings.devices)}")
    if memory := room.line():
        console.print_line(f"memory   {memory}")
    if kernels := kernels_in_use(settings.runtime.device):
        console.print_line(f"kernels  {kernels}")
    for speedup in settings.speedups:
        console.print_line(f"faster   {speedup}")
    if settings.door:
        door = f"http://{settings.host}:{settings.door_port}"
        console.print(f"page     {door}/  (status and playground, in a browser)")
        console.print(f"SIE      {door}  (SIE's own SDK)")
        console.print(f"OpenAI   {door}/v1  (embeddings; Cohere's and Jina's rerank)")
        console.print(f"docs     {door}/docs  (every route)")
    console.print(f"HTTP     {url_of(settings)}")
    console.print(f"gRPC     {settings.inner_host}:{settings.grpc_port}")
    console.print(f"metrics  http://{settings.inner_host}:{settings.metrics_port}/metrics")
    console.print(f"control  http://{settings.inner_host}:{settings.controller_port}/v1/models")
    console.print(f"log      {server.log.path.resolve()}\n")
    if server.shows_its_token:
        console.print(
            "warning: every user of this machine can read the control token in tritonserver's arguments, and with it "
            "run code in this server, and read texts and results in /dev/shm, because the library that hides both "
            f"cannot be compiled, or the data directory is mounted noexec; {INSTALL}",
            style="yellow",
        )


def to_try(first: Refresh) -> ModelConfig:
    """First model whose requests can be answered; if there is none, the first of all."""
    can_load = (model for model in first.models if model.sie_id not in first.unloadable)
    return next(can_load, first.models[0])


def example(spec: ModelSpec, url: str) -> str:
    """Return an example request for the terminal, for one output: of encode's, dense if the model has it."""
    if TEXT.name not in spec.inputs and "extract" in spec.tasks:
        labels = " --labels person,car" if model_of(spec).extraction.labels else ""
        return f"sie-triton extract {spec.model} --url {url} --image picture.jpg{labels}"
    inputs = [
        {"name": name, "shape": [len(values)], "datatype": "BYTES", "data": values}
        for name, values in VERBS[spec.tasks[0]].example(model_of(spec)).items()
    ]
    outputs = ["dense" if "dense" in spec.dims else next(iter(spec.dims))] if spec.tasks[0] == "encode" else []
    asked = {"inputs": inputs} | ({"outputs": [{"name": name} for name in outputs]} if outputs else {})
    body = json.dumps(asked).replace("'", "'\\''")
    return f"curl -s {url}/v2/models/{triton_name(spec.model)}/infer -H 'Content-Type: application/json' -d '{body}'"


def url_of(settings: Settings) -> str:
    return f"http://{settings.inner_host}:{settings.http_port}"
