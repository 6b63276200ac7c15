"""The data directory: locked by one launcher, and cleared of what an earlier launcher left behind."""

import atexit
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import IO

import psutil

from sie_triton.errors import ServerError
from sie_triton.server.preflight import explain
from sie_triton.settings import SERVED_FROM, Settings
from sie_triton.system.host.container import num_processors
from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.limits import ProcessLimits
from sie_triton.system.processes.log import Log, Output
from sie_triton.system.telemetry.lines import Form, as_json, for_people

LOCK = "serve.lock"

OPENMP_THREADS = "OMP_NUM_THREADS"


def lock(data_dir: Path) -> IO[str]:
    """Lock `data_dir` for this process; raise ServerError if it cannot be used, or another server uses it."""
    try:
        handle = (_closed(private_directory(data_dir)) / LOCK).open("a+", errors="replace")
    except OSError as exc:
        reason = str(exc) if exc.errno is None else explain(exc, data_dir)
        raise ServerError(f"--data-dir={data_dir} cannot be used: {reason}; choose another one") from exc
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        handle.close()
        raise ServerError(f"another server uses {data_dir}; give this one its own with --data-dir") from exc
    return handle


def _closed(data_dir: Path) -> Path:
    """Close `data_dir` to other users; raise PermissionError if it is open to them and holds other files."""
    if stat.S_IMODE(data_dir.stat().st_mode) & 0o077:
        names = set(os.listdir(data_dir)) - {"lost+found"}
        if names and LOCK not in names:
            raise PermissionError(f"{data_dir} holds other files and is accessible to other users; chmod go-rwx it")
        data_dir.chmod(0o700)
    return data_dir


def clean_after_predecessor(held: IO[str], data_dir: Path) -> int:
    """End processes and remove memory that a killed launcher left; return the number of processes."""
    num_ended = end_leftovers(data_dir)
    held.seek(0)
    if re.fullmatch(r"sie_\d+_[0-9a-f]{8}_", shm_prefix := held.read(100)):
        remove_regions(shm_prefix)
    return num_ended


def remember(held: IO[str], shm_prefix: str) -> None:
    """Record this server's shared memory, so that the next launcher can remove it if this one is killed."""
    held.truncate(0)
    held.write(shm_prefix)
    held.flush()


def mark(data_dir: Path) -> dict[str, str]:
    """Return the environment variable of all processes that serve from `data_dir`, and of their children."""
    return {SERVED_FROM: str(data_dir.resolve())}


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment variables of all processes of a server.

    Unless told otherwise, OpenMP and OpenBLAS start a thread for each processor of the machine, whatever the quota.
    """
    threads = os.environ.get(OPENMP_THREADS, str(settings.cpu_threads or num_processors()))
    return {**mark(settings.data_dir), **settings.telemetry.variables(), OPENMP_THREADS: threads}


def log_of(settings: Settings, name: str, form: Callable[[Form], Form] = lambda form: form) -> Log:
    """Return the log file NAME.log of the server's processes; `form` changes the form of its lines."""
    path, telemetry = settings.data_dir / "logs" / f"{name}.log", settings.telemetry
    usual = ProcessLimits.max_window_bytes
    limits = ProcessLimits(max_window_bytes=usual * (16 if telemetry.log_requests else 1))
    if telemetry.log_json:
        lines = form(as_json(name, worker=settings.worker_id))
        return Log(path, lines, copy=standard_output().write, limits=limits)
    return Log(path, form(for_people), limits=limits)


@cache
def standard_output() -> Output:
    """Return this process's standard output, for the lines of its children as JSON; flushed at the process's end."""
    output = Output(form=as_json("sie_triton.server"))
    atexit.register(output.flush)
    return output


def end_leftovers(data_dir: Path) -> int:
    """End processes that serve from `data_dir` and that this process did not start; return their number."""
    wanted = mark(data_dir).items()
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if wanted <= process.environ().items() and not _is_started_here(process):
                process.kill()
                found.append(process)
    deadline = monotonic() + 5.0
    while not all(map(_has_ended, found)) and monotonic() < deadline:
        sleep(0.02)
    return len(found)


def _is_started_here(process: psutil.Process) -> bool:
    """True for a child that leads a session, as all do that a launcher starts. Orphans are children of process 1."""
    return process.ppid() == os.getpid() and os.getsid(process.pid) == process.pid


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def remove_records(status_dir: Path) -> None:
    """Remove the records of stages, all of which have ended; files of the fork server and the controller stay."""
    for pattern in ("*.status", "*.grant", "*.loras*"):
        for path in status_dir.glob(pattern):
            path.unlink(missing_ok=True)


def remove_regions(shm_prefix: str) -> None:
    """Remove the shared memory of Python stages."""
    for path in Path("/dev/shm").iterdir():
        if path.name.startswith(shm_prefix):
            path.unlink(missing_ok=True)


def clean(directory: Path) -> Path:
    """Replace `directory` by an empty one that only this user can access."""
    shutil.rmtree(directory, ignore_errors=True)
    private_directory(directory)
    return directory
