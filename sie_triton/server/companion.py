"""Processes beside tritonserver: started with it, and again whenever they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from sie_triton.errors import ServerError
from sie_triton.private import private_directory
from sie_triton.server.data_dir import mark
from sie_triton.server.launch import answers, end_with_parent
from sie_triton.settings import CONTROL_TOKEN, FILE_VARIABLE, Settings, variable

RESTART_AFTER_S = 1.0
END_S = 2.0
READY_TIMEOUT_S = 30.0


class Companion:
    """`python -m MODULE ARGUMENTS`, which imports nothing from the directory that the launcher was started in.

    Use as a context manager; at its end all that it forked ends too.
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._environment = {**os.environ, **environment}
        self._log_path = log
        self._closing = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._run, name=module, daemon=True)

    def __enter__(self) -> "Companion":
        private_directory(self._log_path.parent)
        self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        assert self._process is not None
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._thread.join()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def _run(self) -> None:
        while True:
            assert self._process is not None
            self._process.wait()
            if self._closing.wait(RESTART_AFTER_S):
                return
            self._start()


def controller(settings: Settings, control_token: str) -> Companion:
    """The controller, with the same settings as the server."""
    log = settings.data_dir / "logs" / "controller.log"
    environment = {**resolved(settings), **mark(settings.data_dir), CONTROL_TOKEN: control_token}
    return Companion("sie_triton.cli", ["controller"], log, environment)


def resolved(settings: Settings) -> dict[str, str]:
    """Environment in which they are read as they are here, whatever else is in the environment or a file."""
    given = settings.model_copy(update={"data_dir": settings.data_dir.absolute()}).model_dump(exclude_none=True)
    return {FILE_VARIABLE: os.devnull, **{variable(name): str(value) for name, value in given.items()}}


def nursery(settings: Settings) -> Companion:
    """The process that forks workers."""
    log = settings.data_dir / "logs" / "workers.log"
    return Companion("sie_triton.worker.nursery", [str(settings.status_dir)], log, mark(settings.data_dir))


def wait_for_controller(settings: Settings) -> None:
    """Return once it answers; ServerError with where its log is if it does not."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not answers(f"http://{settings.host}:{settings.controller_port}/readyz"):
        if time.monotonic() > deadline:
            log = settings.data_dir / "logs" / "controller.log"
            raise ServerError(f"the controller is not ready after {READY_TIMEOUT_S:.0f} s; see {log}")
        time.sleep(0.1)
