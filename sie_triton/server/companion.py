"""The controller as a process beside tritonserver: started with it, and again whenever it ends."""

import json
import os
import subprocess
import sys
import time
from threading import Event, Thread

from sie_triton.errors import ServerError
from sie_triton.server.launch import answers, end_with_parent
from sie_triton.settings import CONTROL_TOKEN, PREFIX, Settings

RESTART_AFTER_S = 1.0
END_S = 2.0
READY_TIMEOUT_S = 30.0


class Companion:
    """Use as a context manager."""

    def __init__(self, settings: Settings, control_token: str) -> None:
        given = json.loads(settings.model_dump_json(exclude_defaults=True))
        self._environment = {
            **os.environ,
            **{PREFIX + name.upper(): str(value) for name, value in given.items() if value is not None},
            CONTROL_TOKEN: control_token,
        }
        self._log_path = settings.data_dir / "logs" / "controller.log"
        self._url = f"http://{settings.host}:{settings.controller_port}/readyz"
        self._closing = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._run, name="controller", daemon=True)

    def __enter__(self) -> "Companion":
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join()

    def wait_ready(self) -> None:
        """Return once it answers; ServerError with where its log is if it does not."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not answers(self._url):
            if time.monotonic() > deadline:
                raise ServerError(f"the controller is not ready after {READY_TIMEOUT_S:.0f} s; see {self._log_path}")
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sie_triton.cli", "controller"],
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
