"""The processes beside tritonserver: nursery and controller."""

import os
import time
from collections.abc import Callable

from sie_triton.errors import ServerError
from sie_triton.processes.supervisor import Companion
from sie_triton.server.data_dir import mark
from sie_triton.server.launch import answers
from sie_triton.settings import CONTROL_TOKEN, FILE_VARIABLE, Settings, variable

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
    log = settings.data_dir / "logs" / "workers.log"
    command = ["sie_triton.processes.nursery", "sie_triton.worker.__main__", str(settings.status_dir)]
    return Companion("the nursery", command, log, mark(settings.data_dir), say)


def wait_for_controller(settings: Settings) -> None:
    """Return once it answers; ServerError with where its log is if it does not."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not answers(f"http://{settings.host}:{settings.controller_port}/readyz"):
        if time.monotonic() > deadline:
            log = settings.data_dir / "logs" / "controller.log"
            raise ServerError(f"the controller is not ready after {READY_TIMEOUT_S:.0f} s; see {log}")
        time.sleep(0.1)
