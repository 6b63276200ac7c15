"""Start tritonserver, wait until its models are ready, and end everything that it started."""

import json
import os
import resource
import secrets
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from sie_triton.errors import ServerError
from sie_triton.pipeline.render.repository import all_ensembles
from sie_triton.records.serving_file import locked
from sie_triton.server.data_dir import (
    end_leftovers,
    environment_of,
    log_of,
    remove_records,
    remove_regions,
)
from sie_triton.server.find_triton import find_triton, stage_directory
from sie_triton.server.stub_forking.stubs import forked
from sie_triton.settings import CONTROL_KEY, Settings
from sie_triton.system.native.builds import PRIVACY
from sie_triton.system.native.loading import preloading, put
from sie_triton.system.processes.child import Started, end_with_parent, start
from sie_triton.system.processes.command_line import is_visible
from sie_triton.system.telemetry.identity import FORWARDED
from sie_triton.system.telemetry.lines import without_gpu

EXIT_TIMEOUT_S = 7

# Release 24.06: the Python backend of older ones lets no step answer after `execute` has returned.
OLDEST_TRITON = (2, 47)


class Server:
    """tritonserver on a rendered repository, with the fork server of its stubs; a Supervisor keeps it running.

    Each start serves the models that are then in the repository. A change of it has `change_s` seconds to end before
    Triton starts anyway: it takes a second or two, but may wait for the model hub. Use as a context manager; `say`
    prints a line about each event of the fork server.
    """

    name = "tritonserver"

    def __init__(
        self,
        settings: Settings,
        repository: Path,
        *,
        verbose: bool = False,
        say: Callable[[str], None] = lambda line: None,
        change_s: float = 3.0,
    ) -> None:
        self._settings, self._change_s = settings, change_s
        self._ensembles: list[str] = []
        self._verbose = verbose
        self._repository = repository
        triton = find_triton(settings.tritonserver, settings.data_dir.absolute())
        self._triton, self._fork_server = forked(triton, settings, say)
        self._environment = self._triton.environment | environment_of(settings)
        library = settings.data_dir.absolute() / "privacy.so"
        library.unlink(missing_ok=True)
        self._is_private = put(PRIVACY, library)
        if self._is_private:
            self._environment = preloading(library, self._environment)
        self._child: Started | None = None
        self._reading = ExitStack()  # holds the repository's lock while Triton reads it
        self.control_token = secrets.token_urlsafe(24)
        self.shm_prefix = f"sie_{os.getpid()}_{secrets.token_hex(4)}_"
        has_gpu = settings.runtime.device != "cpu"
        self.log = log_of(settings, "tritonserver") if has_gpu else log_of(settings, "tritonserver", without_gpu)

    def __enter__(self) -> "Server":
        with ExitStack() as stack:
            stack.enter_context(self.log)
            if self._fork_server is not None:
                stack.enter_context(self._fork_server)
            self.start()
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        """Start tritonserver. If it replaces one that ended, remove all that is left of that, except its log."""
        if self._child is None:
            self._refuse_remote()
        else:
            self._end(self._child)
        self._reading.close()
        self._reading.enter_context(locked(self._settings.data_dir, self._change_s))
        self._ensembles = all_ensembles(self._repository)
        secrets = self.secrets()
        hidden = {f"SIE_HIDDEN_ARGUMENT_{i}": each for i, each in enumerate(secrets)} if self._is_private else {}
        self._child = start(
            [*self.command(), *(map("${}".format, hidden) if hidden else secrets)],
            environment={**self._environment, **hidden},  # server/privacy.c puts them into the arguments
            log=None if self._verbose and not self._settings.log_json else self.log,
            cwd=stage_directory(self._settings.data_dir),
            before=before_triton,
        )

    @property
    def shows_its_token(self) -> bool:
        """True if every user of this machine can read the control token, and the shared memory of the stages."""
        return is_visible(self.pid, self.control_token)

    def command(self) -> list[str]:
        s = self._settings
        return [
            str(self._triton.binary),
            f"--model-repository={self._repository.absolute()}",
            f"--backend-directory={self._triton.backend_directory}",
            f"--backend-config=python,shm-region-prefix-name={self.shm_prefix}",
            # Triton's 30 s are too short for hundreds that start at once on a busy machine. It sees dead ones at once.
            "--backend-config=python,stub-timeout-seconds=300",
            # Threads that forward the responses of one stage. Triton's default is 32: 777 for seven models.
            "--backend-config=python,thread-pool-size=4",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in self._ensembles),
            "--disable-auto-complete-config",
            "--strict-readiness=false",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            f"--http-address={s.inner_host}",
            f"--http-port={s.http_port}",
            f"--grpc-address={s.inner_host}",
            f"--grpc-port={s.grpc_port}",
            "--reuse-http-port=true",  # see system/host/ports.py
            "--reuse-grpc-port=true",
            "--grpc-infer-allocation-pool-size=0",  # otherwise Triton keeps the memory of its eight largest requests
            f"--metrics-address={s.inner_host}",
            f"--metrics-port={s.metrics_port}",
            f"--http-header-forward-pattern={FORWARDED}",
            f"--grpc-header-forward-pattern={FORWARDED}",
        ]

    def secrets(self) -> list[str]:
        """Return arguments to hide: a load call may carry code, so only the controller may know the token."""
        restricted = f"model-repository,shared-memory,trace,logging:{CONTROL_KEY}={self.control_token}"
        return [f"--grpc-restricted-protocol={restricted}", f"--http-restricted-api={restricted}"]

    def wait_ready(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Return once every model answers; `progress` gets the number of ready models.

        Raise ServerError with the end of Triton's log if it exits or five minutes pass. Until then the repository
        does not change: Triton would end if a model that it is to load is gone.
        """
        with self._reading:
            self._wait_ready(progress)

    def _wait_ready(self, progress: Callable[[int], None]) -> None:
        deadline = time.monotonic() + 300
        pending, is_live = list(self._ensembles), False
        while pending or not is_live:
            is_live = self._answers("/v2/health/live")
            pending = [model for model in pending if not self._answers(f"/v2/models/{model}/ready")]
            progress(len(self._ensembles) - len(pending))
            self.check_alive()
            if time.monotonic() > deadline:
                raise ServerError(f"not ready after 300 s: {', '.join(pending)}\n{self._log_tail()}")
            time.sleep(0.1)

    def check_version(self) -> None:
        """Raise ServerError if tritonserver, which is ready, is too old."""
        with urllib.request.urlopen(self._url("/v2"), timeout=10) as response:
            version = json.load(response)["version"]
        if tuple(map(int, version.split(".")[:2])) < OLDEST_TRITON:
            raise ServerError(f"tritonserver {version} is too old; use release 24.06 (2.47) or a newer one")

    def check_alive(self) -> None:
        """Raise ServerError with the end of Triton's log if it has ended."""
        if self._child is None or self._child.wait(0):
            raise ServerError(f"tritonserver ended before it was ready:\n{self._log_tail()}")

    def wait(self) -> str | None:
        """Block until tritonserver ends by itself; return how, in words, or None for exit status 0."""
        assert self._child is not None
        return self._child.describe_exit if self._child.status else None

    def stop(self) -> None:
        """Let Triton drain and exit, end processes that are left, and remove its shared memory."""
        self._reading.close()
        if self._child is not None:
            self._child.send(signal.SIGTERM)
            self._end(self._child, EXIT_TIMEOUT_S + 1.5)
            self._child = None

    def _end(self, child: Started, seconds: float = 0.0) -> None:
        """End tritonserver within `seconds`; then end its stages and their workers, and remove their shared memory."""
        child.end(seconds)
        end_leftovers(self._settings.data_dir)
        remove_regions(self.shm_prefix)
        remove_records(self._settings.status_dir)

    def _answers(self, path: str) -> bool:
        return answers(self._url(path))

    def _url(self, path: str) -> str:
        return f"http://{self._settings.inner_host}:{self._settings.http_port}{path}"

    def _refuse_remote(self) -> None:
        host = self._settings.inner_host
        if self._triton.embedded and not host.startswith("127.") and not self._settings.allow_remote:
            raise ServerError(
                f"{host}: the embedded Triton 24.10 has publicly known vulnerabilities and listens on loopback only; "
                "use NVIDIA's container image, or --auth-mode=token, with which only the door listens on --host, or "
                "--allow-remote if you know your network"
            )

    def _log_tail(self, num_lines: int = 25) -> str:
        return "\n".join(self._child.log().splitlines()[-num_lines:]) if self._child else ""


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def before_triton() -> None:
    """Prepare the child process that becomes tritonserver."""
    end_with_parent()
    raise_stack_limit()
    # If the launcher was killed, the log's pipe has no reader; requests in progress must still be answered.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


# Triton 24.10 puts on the stack a form's body twice, an entry for each piece of a chunked body, and a call for each
# bracket of JSON. The usual 8 MB overflow with a body of 4.5 MB, 600,000 pieces, or 200,000 brackets. Only used pages
# cost memory.
STACK_BYTES = 1024**3
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


def raise_stack_limit() -> None:
    """Raise the stack limit in a child before it starts tritonserver, whose threads take the limit as their size."""
    if OVERCOMMIT.read_text().strip() == "2":  # every page counts, used or not
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    # With an unlimited stack, glibc gives each thread only 2 MB.
    if soft == resource.RLIM_INFINITY or soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
