"""Starts tritonserver, waits until its models are ready, and ends everything it started."""

import ctypes
import os
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sie_triton.errors import ServerError
from sie_triton.private import private_directory
from sie_triton.render.repository import ensemble_names
from sie_triton.server import hidden, stack
from sie_triton.server.data_dir import end_leftovers, mark, remove_records, remove_regions
from sie_triton.server.find_triton import Triton, find_triton, stage_directory
from sie_triton.settings import CONTROL_KEY, Settings

READY_TIMEOUT_S = 300.0
EXIT_TIMEOUT_S = 7
KILL_AFTER_S = 8.5
PR_SET_PDEATHSIG = 1
CONTROL_PROTOCOLS = "model-repository,shared-memory,trace,logging"


class Server:
    """One tritonserver process over a rendered repository. Use as a context manager."""

    def __init__(self, settings: Settings, repository: Path, models: Sequence[str], *, verbose: bool = False) -> None:
        self._settings = settings
        self._models = [name for model in models for name in ensemble_names(repository, model)]
        self._verbose = verbose
        self._repository = repository
        self._triton: Triton = find_triton(settings.tritonserver, settings.data_dir.absolute())
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.control_token = secrets.token_urlsafe(24)
        self.shm_prefix = f"sie_{os.getpid()}_{secrets.token_hex(4)}_"
        self.log_path = settings.data_dir / "logs" / "tritonserver.log"

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._refuse_remote()
        private_directory(self.log_path.parent)
        self.log_path.write_bytes(b"")
        self._start()

    def start_again(self) -> None:
        """In the place of one that ended: nothing of that one is left, but its log."""
        self._end_the_rest()
        self._start()

    def _start(self) -> None:
        self._log_start = self.log_path.stat().st_size
        environment = {**self._triton.environment, **mark(self._settings.data_dir)}
        with self.log_path.open("ab") as log:
            output = {} if self._verbose else {"stdout": log, "stderr": log}
            cwd = stage_directory(self._settings.data_dir)
            options: dict[str, Any] = {"cwd": cwd, "stdin": subprocess.DEVNULL, "start_new_session": True, **output}
            try:
                self._process = hidden.start(
                    self.command(), self.secrets(), environment, before=before_triton, **options
                )
            except OSError:
                command = [*self.command(), *self.secrets()]
                self._process = subprocess.Popen(command, env=environment, preexec_fn=before_triton, **options)

    @property
    def shows_its_token(self) -> bool:
        """True where every user of this machine can read it."""
        return hidden.is_visible(self.pid, self.control_token)

    def command(self) -> list[str]:
        s = self._settings
        return [
            str(self._triton.binary),
            f"--model-repository={self._repository.absolute()}",
            f"--backend-directory={self._triton.backend_directory}",
            f"--backend-config=python,shm-region-prefix-name={self.shm_prefix}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in self._models),
            "--disable-auto-complete-config",
            "--strict-readiness=false",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            f"--http-address={s.host}",
            f"--http-port={s.http_port}",
            f"--grpc-address={s.host}",
            f"--grpc-port={s.grpc_port}",
            f"--metrics-address={s.host}",
            f"--metrics-port={s.metrics_port}",
        ]

    def secrets(self) -> list[str]:
        """Arguments for nobody's eyes: a load call may carry code, and only the controller knows the token."""
        restricted = f"{CONTROL_PROTOCOLS}:{CONTROL_KEY}={self.control_token}"
        return [f"--grpc-restricted-protocol={restricted}", f"--http-restricted-api={restricted}"]

    def wait_ready(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Return once every model answers; `progress` gets the number of ready models.

        ServerError with the end of Triton's log if it exits or READY_TIMEOUT_S passes.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        pending = list(self._models)
        while pending:
            pending = [model for model in pending if not self._answers(f"/v2/models/{model}/ready")]
            progress(len(self._models) - len(pending))
            if self._process is None or self._process.poll() is not None:
                raise ServerError(f"tritonserver ended before it was ready:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"not ready after {READY_TIMEOUT_S:.0f} s: {', '.join(pending)}\n{self._log_tail()}")
            time.sleep(0.1)

    def wait(self) -> int:
        """Block until tritonserver ends by itself; its exit status."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """Let Triton drain and exit, end what is left, remove its shared memory."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_AFTER_S)
        self._end_the_rest()
        self._process = None

    def _end_the_rest(self) -> None:
        """What is left of the process, its stages, their workers, and their shared memory."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        end_leftovers(self._settings.data_dir)
        remove_regions(self.shm_prefix)
        remove_records(self._settings.status_dir)

    def _answers(self, path: str) -> bool:
        return answers(f"http://{self._settings.host}:{self._settings.http_port}{path}")

    def _refuse_remote(self) -> None:
        loopback = self._settings.host.startswith("127.")
        if self._triton.embedded and not loopback and not self._settings.allow_remote:
            raise ServerError(
                f"--host {self._settings.host}: the embedded Triton 24.10 has publicly known remote weaknesses and "
                "listens on loopback only; use NVIDIA's container image, or --allow-remote if you know your network"
            )

    def _log_tail(self, num_lines: int = 25) -> str:
        if self._verbose:
            return ""
        return "\n".join(self.log().splitlines()[-num_lines:])

    def log(self) -> str:
        """What this process wrote, without those before it."""
        return self.log_path.read_bytes()[self._log_start :].decode(errors="replace")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def end_with_parent() -> None:
    """For a child, before it starts its program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def before_triton() -> None:
    """For the child that becomes tritonserver."""
    end_with_parent()
    stack.deepen()
