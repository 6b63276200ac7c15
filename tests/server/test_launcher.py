"""The launcher with a tritonserver that dies, with leftovers of other servers, and beside other users."""

import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import numpy as np
import pytest

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.errors import ServerError, SIEError
from sie_triton.records.status import read_records, records_of
from sie_triton.settings import Settings
from sie_triton.settings.sources import flag
from sie_triton.system.processes.pids import is_alive, represented_pid
from tests.conftest import MINILM, fresh_settings
from tests.server.test_serve import alive, descendants, log_of, regions, started
from tests.support.chart import pod_of, rendered

BACK_S = 15
OTHER = 65534  # another user of the machine
GIVEN = ("data_dir", "http_port", "grpc_port", "metrics_port", "controller_port", "admin_token")


def launched(settings: Settings, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started("--no-door", *arguments, *(f"{flag(name)}={getattr(settings, name)}" for name in GIVEN))


def grpc(settings: Settings) -> str:
    return f"127.0.0.1:{settings.grpc_port}"


def command_of(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")  # it may be changing
    return [""]


def tritonserver_of(process: subprocess.Popen[str]) -> int:
    (pid,) = (pid for pid in descendants(process.pid) if command_of(pid)[0].endswith("/tritonserver"))
    return pid


def companions_of(process: subprocess.Popen[str]) -> set[int]:
    """Return the fork servers, of workers and of stubs, and the controller."""
    return {
        pid
        for pid in alive(descendants(process.pid))
        if os.getsid(pid) == pid and not command_of(pid)[0].endswith("/tritonserver")
    }


def until(condition: Callable[[], object], seconds: float = BACK_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_right(client: SIEClient, vector: np.ndarray) -> bool:
    with suppress(SIEError, OSError):
        return float(client.encode(MINILM, "hello", timeout=BACK_S)["dense"] @ vector) > 0.9999
    return False


def obeys_its_controller(settings: Settings) -> bool:
    with suppress(ServerError):
        ask(settings, f"/v1/models/{triton_name(MINILM)}/evict", "POST")
        return True
    return False


def check_the_charts_probes(settings: Settings, triton: int) -> None:
    """They ask the controller: readiness fails while tritonserver is stopped, liveness does not."""
    server, _ = pod_of(rendered({}), "StatefulSet", "sie-worker-default")["containers"]

    def succeeds(probe: str) -> bool:
        env = {**os.environ, "SIE_CONTROLLER_PORT": str(settings.controller_port)}
        return subprocess.run(server[probe]["exec"]["command"], env=env, stdout=subprocess.DEVNULL).returncode == 0

    assert all(map(succeeds, ("startupProbe", "livenessProbe", "readinessProbe")))
    os.kill(triton, signal.SIGSTOP)
    try:
        until(lambda: not succeeds("readinessProbe"))
        assert succeeds("livenessProbe")
    finally:
        os.kill(triton, signal.SIGCONT)  # else it outlives the launcher that is killed


def test_a_tritonserver_that_dies_is_started_again_and_a_launcher_cleans_up_after_a_killed_one(tmp_path):
    """A signal ends the next launcher even during a restart of tritonserver."""
    settings = fresh_settings(tmp_path, admin_token="for-tests")
    with launched(settings) as process, SIEClient(grpc(settings)) as client:
        check_the_charts_probes(settings, tritonserver_of(process))
        vector = client.encode(MINILM, "hello")["dense"]
        companions = companions_of(process)
        assert len(companions) == 3
        old, triton, died = set(descendants(process.pid)) - companions, tritonserver_of(process), time.monotonic()
        os.kill(triton, signal.SIGSEGV)
        until(lambda: not is_alive(triton))
        until(lambda: is_right(client, vector))
        print(f"\nanswered again after {time.monotonic() - died:.1f} s")
        assert alive(list(old)) == []
        assert companions_of(process) == companions
        assert [stat.S_IMODE(region.stat().st_mode) for region in regions(process)] == [0o600] * 3
        assert {r["pid"] for r in read_records(settings.status_dir, "*")} <= set(descendants(process.pid))
        until(lambda: obeys_its_controller(settings))
        client.encode(MINILM, "hello")
        children, stopped, left = killed_beside_a_stopped_stage(process, settings)
        _, told = process.communicate()
    assert "tritonserver ended by SIGSEGV in tritonserver" in told
    assert told.count("tritonserver was restarted in") == 1
    assert log_of(settings.data_dir).read_text().count("Started HTTPService") == 2
    with launched(settings) as again:
        assert alive([*children, stopped]) == []
        assert [region for region in left if region.exists()] == []
        told = ended_during_a_restart(again, settings)
    assert "ended 1 processes" in told


def killed_beside_a_stopped_stage(
    process: subprocess.Popen[str], settings: Settings
) -> tuple[list[int], int, list[Path]]:
    """Kill the launcher and tritonserver; return their child processes, the stopped one, and the memory left."""
    records = records_of(settings.status_dir, triton_name(MINILM), "inference")
    inference = max(records, key=lambda record: record["generation"])
    children, triton = descendants(process.pid), tritonserver_of(process)
    stopped = next(pid for pid in descendants(triton) if represented_pid(pid) == inference["pid"])
    os.kill(stopped, signal.SIGSTOP)
    for pid in (process.pid, triton):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    # All end by themselves but the one that cannot.
    until(lambda: alive(children) == [stopped])
    assert inference["worker_pid"] in children
    left = regions(process)
    assert left
    return children, stopped, left


def ended_during_a_restart(process: subprocess.Popen[str], settings: Settings) -> str:
    """End a launcher while it restarts tritonserver, and return what it wrote to standard error before."""
    children, told = descendants(process.pid), ""
    repository = settings.data_dir / "model_repository"
    repository.rename(settings.data_dir / "gone")
    repository.touch()  # nor can the controller, which looks at the model files once more, bring it back
    os.kill(tritonserver_of(process), signal.SIGKILL)
    assert process.stderr is not None
    while "start 1 of 5 failed" not in told:
        told += process.stderr.readline()
        assert process.poll() is None
    for port in (settings.http_port, settings.grpc_port, settings.controller_port):
        with pytest.raises(OSError, match="in use"):  # another user would get requests, and the control token
            socket.create_server(("127.0.0.1", port)).close()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=15)
    assert process.returncode == 0
    assert alive(children) == []
    assert regions(process) == []
    return told
