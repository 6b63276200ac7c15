"""`sie-triton serve` as a user runs it, and a stock tritonserver on the committed repository."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ports import free_ports
from sie_triton import SIEClient
from sie_triton.records.status import RESIDENT, records_of
from sie_triton.server.find_triton import find_triton
from sie_triton.system.processes.pids import parent_of
from tests.conftest import MINILM
from tests.support.signals import heed_signals

heed_signals()

ROOT = Path(__file__).parents[2]
PORT_FLAGS = ("--http-port", "--grpc-port", "--metrics-port", "--controller-port", "--door-port")


def sie(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("sie-triton")), *arguments]
    env, pipe = {**os.environ, **environment}, subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)


def port_flags(ports: list[int]) -> list[str]:
    """Return the port flags; four ports: without a door."""
    flags = [f"{name}={port}" for name, port in zip(PORT_FLAGS, ports, strict=False)]
    return flags if len(ports) == len(PORT_FLAGS) else [*flags, "--no-door"]


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run `sie-triton serve`; yield its process once it is ready."""
    process = sie("serve", *arguments, **environment)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready == "SIE ready\n", process.communicate()[1]
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@contextmanager
def serving(data_dir: Path, *arguments: str, num_ports: int = 4) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `sie-triton serve` and its gRPC address; five ports: with a door."""
    ports = free_ports(num_ports)
    with started(*arguments, f"--data-dir={data_dir}", *port_flags(ports)) as process:
        yield process, f"127.0.0.1:{ports[1]}"


def descendants(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(stat.parent.name)
            found += [child, *descendants(child)]
    return found


def log_of(data_dir: Path) -> Path:
    return data_dir / "logs" / "tritonserver.log"


def alive(pids: list[int]) -> list[int]:
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [pid for pid, stat in states.items() if stat.exists() and ") Z" not in stat.read_text()]


def regions(process: subprocess.Popen[str]) -> list[Path]:
    return list(Path("/dev/shm").glob(f"sie_{process.pid}_*"))


def ended_cleanly(process: subprocess.Popen[str], signum: signal.Signals, log: Path) -> str:
    """End a server by a signal, check that nothing of it is left, and return what it wrote to standard error."""
    children = descendants(process.pid)
    assert regions(process)
    process.send_signal(signum)
    try:
        printed, told = process.communicate(timeout=20)  # Triton may take its whole exit timeout
    except subprocess.TimeoutExpired:
        pytest.fail(log.read_text()[-3000:])
    assert process.returncode == 0
    assert printed == ""  # ready is said once
    assert [line.partition(":")[0] for line in told.splitlines()[-2:]] == ["stopping", "stopped"]
    assert alive(children) == []
    assert regions(process) == []
    return told


def test_a_directory_is_served_and_preloaded_from_odd_directories(tmp_path, tiny_directory, monkeypatch):
    """Python, and so Triton's stubs, put the current directory first on the path, even if it is /tmp: no module of it
    is imported.
    """
    directory, here, data_dir = tmp_path / "my-model", tmp_path / "here", tmp_path / """it's "ünï" in $HOME"""
    shutil.copytree(tiny_directory, directory)
    here.mkdir()
    for module in ("numpy", "torch", "sie_triton", "tritonclient"):
        (here / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.chdir(here)
    arguments = [str(directory), "--preload-models=my-model", "--host=localhost"]
    with serving(data_dir, *arguments, num_ports=5) as (process, address), SIEClient(address) as client:
        (record,) = records_of(data_dir / "status", "my-model", "inference")
        assert record["state"] == RESIDENT
        assert record["wanted_since_ns"], "it did not ask for memory"
        assert parent_of(parent_of(record["worker_pid"])) == process.pid  # launcher → fork server → worker
        # Forked by the fork server, which has a plain name for it.
        status_dir = Path(Path(f"/proc/{record['worker_pid']}/cmdline").read_text().split("\0")[-2])
        assert status_dir.samefile(data_dir / "status")
        assert client.list_models() == ["my-model"]
        assert client.encode("my-model", "hello")["dense"].shape == (64,)
        (door,) = [
            pid for pid in descendants(process.pid) if b"sie_triton.doors" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        text = ended_cleanly(process, signal.SIGINT, log_of(data_dir))
        assert alive([door, record["worker_pid"]]) == []
        assert not status_dir.exists()
    assert not (tmp_path / "imported").exists()
    assert address in text
    assert re.search(r"^SIE +(\S+) .*\nOpenAI +\1/v1 .* rerank\)\ndocs +\1/docs ", text, re.MULTILINE)
    example = next(line for line in text.splitlines() if line.startswith("curl"))
    assert "/v2/models/my-model/infer" in example


def test_stock_tritonserver_serves_the_committed_repository(tmp_path):
    """No flag is ours: only where to listen, and where this machine keeps Triton's backends."""
    triton = find_triton(None, tmp_path)
    http_port, grpc_port, metrics_port = free_ports(3)
    command = [
        str(triton.binary),
        f"--model-repository={ROOT / 'model_repository'}",
        f"--backend-directory={triton.backend_directory}",
        *(f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"),
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=triton.environment, stdout=log, stderr=log)
    try:
        with SIEClient(f"127.0.0.1:{grpc_port}") as client:
            deadline = time.monotonic() + 200
            while not ready(http_port) and time.monotonic() < deadline:
                time.sleep(0.2)
            dense = client.encode(MINILM, "hello")["dense"]
        assert dense.shape == (384,)
        assert abs(np.linalg.norm(dense) - 1) < 1e-5
    finally:
        process.terminate()
        process.wait(60)


def ready(http_port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{http_port}/v2/health/ready", timeout=2).status == 200
    except OSError:
        return False
