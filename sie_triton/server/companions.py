"""The processes beside tritonserver: fork servers, controller and doors."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from sie_triton.contract.spec import ModelSpec
from sie_triton.doors.counts import variables as counts_variables
from sie_triton.engines import IN_FORK_SERVER
from sie_triton.errors import LoadError, ServerError
from sie_triton.models.environments.venv import find, try_out
from sie_triton.records.grants import expect_controller
from sie_triton.server.data_dir import environment_of, log_of
from sie_triton.server.launch import answers
from sie_triton.settings import CONTROL_TOKEN, Settings
from sie_triton.settings.sources import FILE_VARIABLE, variable
from sie_triton.system.host.device import worker_variables
from sie_triton.system.host.ports import reserved
from sie_triton.system.processes.fork_server import fork_server_directory
from sie_triton.system.processes.freed_memory import LARGE_BLOCKS
from sie_triton.system.processes.limits import ProcessLimits
from sie_triton.system.processes.supervisor import Companion

CONTROLLER_LOG, DOOR_LOG = "controller", "door"

# Seconds until a door is killed; its own timeout for requests in progress is shorter.
DRAIN_S = 8.0

Say = Callable[[str], None]


def controller(
    settings: Settings,
    control_token: str,
    say: Say = lambda line: None,
    limits: ProcessLimits = ProcessLimits(),
) -> Companion:
    """The controller, with the same settings as the server; models that load before it has started wait for it."""
    expect_controller(settings.status_dir)
    log = log_of(settings, CONTROLLER_LOG)
    environment = {**resolved(settings), **environment_of(settings), CONTROL_TOKEN: control_token}
    command = ["sie_triton.cli", "controller"]
    return Companion("the controller", command, log, environment, say, beats=True, limits=limits)


@contextmanager
def doors(
    settings: Settings,
    marked: Mapping[str, str],
    say: Say = lambda line: None,
    module: str = "sie_triton.doors",
    also_ports: Sequence[int] = (),
    limits: ProcessLimits = ProcessLimits(),
) -> Iterator[list[Companion]]:
    """Run the processes of `module` that share the door's port, and `also_ports`. At the end, all drain at once."""
    log = log_of(settings, DOOR_LOG)
    environment = {**resolved(settings), **marked, **LARGE_BLOCKS, **counts_variables(settings.status_dir)}
    names = ["the door"] if settings.door_workers == 1 else [f"door {i}" for i in range(settings.door_workers)]
    options: dict[str, Any] = {"end_s": DRAIN_S, "beats": True, "limits": limits}
    processes = [Companion(name, [module], log, environment, say, **options) for name in names]
    started = []
    with reserved(settings.host, [settings.door_port, *also_ports]):
        try:
            for each in processes:
                each.__enter__()
                started.append(each)
            yield processes
        finally:
            with ThreadPoolExecutor(len(processes)) as together:
                list(together.map(Companion.__exit__, started))


def wait_for_door(settings: Settings) -> None:
    """Return once the door has found Triton, which it polls every second; else raise ServerError that names its log."""
    _wait_for_companion("the door", settings, f"{settings.host}:{settings.door_port}", DOOR_LOG)


def resolved(settings: Settings) -> dict[str, str]:
    """Return an environment that reproduces `settings`, whatever else the environment or a settings file says."""
    given = settings.model_copy(update={"data_dir": settings.data_dir.absolute()}).model_dump(exclude_none=True)
    return {FILE_VARIABLE: os.devnull, **{variable(name): str(value) for name, value in given.items()}}


@contextmanager
def fork_servers(settings: Settings, specs: Sequence[ModelSpec], say: Say = lambda line: None) -> Iterator[None]:
    """Run the fork server, and a lazy one for each environment whose workers can be forked.

    The fork server is lazy too if no model needs it: it then takes 370 MB less, until a model is added that does.
    If an environment cannot be used now and is repaired later, its workers are started without a fork server.
    """
    # Workers inherit the variables of their fork server.
    variables = {**environment_of(settings), **worker_variables(settings.runtime.device)}
    log = log_of(settings, "workers")
    environments = {spec.environment for spec in specs if spec.engine in IN_FORK_SERVER}
    with ExitStack() as stack:
        command = _command(settings.status_dir, lazily=bool(specs) and "" not in environments)
        stack.enter_context(Companion("the fork server", command, log, variables, say))
        for name in sorted(environments - {""}):
            with suppress(LoadError):
                venv = try_out(find(settings.environments_dir, name))
                command = _command(fork_server_directory(settings.status_dir, name), lazily=True)
                title, program = f"the fork server of environment {name}", (*venv.command, "-m")
                stack.enter_context(Companion(title, command, log, variables, say, program=program))
        yield


def _command(directory: Path, *, lazily: bool) -> list[str]:
    command = ["sie_triton.system.processes.fork_server", "sie_triton.pipeline.worker.__main__", str(directory)]
    return [*command, "lazily"] if lazily else command


def wait_for_controller(settings: Settings) -> None:
    """Return once the controller answers; else raise ServerError that names its log."""
    address = f"{settings.inner_host}:{settings.controller_port}"
    _wait_for_companion("the controller", settings, address, CONTROLLER_LOG)


def _wait_for_companion(name: str, settings: Settings, address: str, log: str) -> None:
    wait_for(name, lambda: answers(f"http://{address}/readyz"), 30.0, log_of(settings, log).path)


def wait_for(name: str, is_ready: Callable[[], bool], seconds: float, log: Path) -> None:
    """Return once something is ready; after so many seconds raise ServerError, which names it and its log."""
    deadline = time.monotonic() + seconds
    while not is_ready():
        if time.monotonic() > deadline:
            last = log.read_text(errors="replace").splitlines()[-1:]
            raise ServerError("\n".join([f"{name} is not ready after {seconds:.0f} s; see {log}", *last]))
        time.sleep(0.1)
