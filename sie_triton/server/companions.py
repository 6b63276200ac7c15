"""The processes beside tritonserver: nurseries and controller."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sie_triton.engines import IN_NURSERY
from sie_triton.environments.venv import find, try_out
from sie_triton.errors import LoadError, ServerError
from sie_triton.processes.nursery import nursery_directory
from sie_triton.processes.supervisor import Companion
from sie_triton.server.data_dir import mark
from sie_triton.server.launch import answers
from sie_triton.settings import CONTROL_TOKEN, FILE_VARIABLE, Settings, variable
from sie_triton.spec import ModelSpec

READY_TIMEOUT_S = 30.0

Say = Callable[[str], None]


def controller(settings: Settings, control_token: str, say: Say = lambda line: None) -> Companion:
    """The controller, with the same settings as the server."""
    log = settings.data_dir / "logs" / "controller.log"
    environment = {**resolved(settings), **mark(settings.data_dir), CONTROL_TOKEN: control_token}
    return Companion("the controller", ["sie_triton.cli", "controller"], log, environment, say)


def resolved(settings: Settings) -> dict[str, str]:
    """Environment in which they are read as they are here, whatever else is in the environment or a file."""
    given = settings.model_copy(update={"data_dir": settings.data_dir.absolute()}).model_dump(exclude_none=True)
    return {FILE_VARIABLE: os.devnull, **{variable(name): str(value) for name, value in given.items()}}


def nursery(settings: Settings, say: Say = lambda line: None) -> Companion:
    """The process that forks workers."""
    return Companion("the nursery", _nursing(settings.status_dir), _log(settings), mark(settings.data_dir), say)


@contextmanager
def nurseries(settings: Settings, specs: Iterable[ModelSpec], say: Say = lambda line: None) -> Iterator[None]:
    """The nursery, and a lazy one for each environment whose workers can be forked.

    In an environment that cannot be used now, and is put right later, workers are started by themselves.
    """
    with ExitStack() as stack:
        stack.enter_context(nursery(settings, say))
        for name in sorted({spec.environment for spec in specs if spec.environment and spec.engine in IN_NURSERY}):
            with suppress(LoadError):
                venv = try_out(find(settings.environments_dir, name))
                command = [*_nursing(nursery_directory(settings.status_dir, name)), "lazily"]
                title, marked = f"the nursery of environment {name}", mark(settings.data_dir)
                program = (*venv.command, "-m")
                stack.enter_context(Companion(title, command, _log(settings), marked, say, program=program))
        yield


def _nursing(directory: Path) -> list[str]:
    return ["sie_triton.processes.nursery", "sie_triton.worker.__main__", str(directory)]


def _log(settings: Settings) -> Path:
    return settings.data_dir / "logs" / "workers.log"


def wait_for_controller(settings: Settings) -> None:
    """Return once it answers; ServerError with where its log is if it does not."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not answers(f"http://{settings.host}:{settings.controller_port}/readyz"):
        if time.monotonic() > deadline:
            log = settings.data_dir / "logs" / "controller.log"
            raise ServerError(f"the controller is not ready after {READY_TIMEOUT_S:.0f} s; see {log}")
        time.sleep(0.1)
