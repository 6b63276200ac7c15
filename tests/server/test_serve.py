"""`sie-triton serve` as a user runs it, and a stock tritonserver on the committed repository."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.ports import free_ports
from sie_triton import LoadError, SIEClient
from sie_triton.records.status import RESIDENT, records_of
from sie_triton.server.find_triton import find_triton
from sie_triton.system.processes.pids import parent_of
from tests.conftest import MINILM, TINY, tiny_model_file
from tests.support.controller import wait_for
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
def serving(data_dir: Path, *arguments: str, num_ports: int = 4) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `sie-triton serve` and its gRPC address; five ports: with a door."""
    ports = free_ports(num_ports)
    process = sie("serve", *arguments, f"--data-dir={data_dir}", *port_flags(ports))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "SIE ready\n", process.communicate()[1]
        yield process, f"127.0.0.1:{ports[1]}"
    finally:
        process.kill()
        process.communicate()


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


def test_a_directory_is_served_and_preloaded_beside_another_server(tmp_path, tiny_directory):
    """Two servers run side by side. The child processes of the second end with it when it is killed, and the first ends
    cleanly.
    """
    directory = tmp_path / "my-model"
    shutil.copytree(tiny_directory, directory)
    arguments = [str(directory), "--preload-models=my-model"]
    with serving(tmp_path / "data", *arguments, num_ports=5) as (process, address), SIEClient(address) as client:
        (record,) = records_of(tmp_path / "data" / "status", "my-model", "inference")
        assert record["state"] == RESIDENT
        assert record["wanted_since_ns"], "it did not ask for memory"
        assert parent_of(parent_of(record["worker_pid"])) == process.pid  # launcher → fork server → worker
        assert client.list_models() == ["my-model"]
        assert client.encode("my-model", "hello")["dense"].shape == (64,)
        with serving(tmp_path / "other") as (killed, _):
            check_that_child_processes_end_with_a_killed_launcher(killed)
        (door,) = [
            pid for pid in descendants(process.pid) if b"sie_triton.doors" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        text = ended_cleanly(process, signal.SIGINT, log_of(tmp_path / "data"))
        assert alive([door, record["worker_pid"]]) == []
    assert address in text
    assert re.search(r"^SIE +(\S+) .*\nOpenAI +\1/v1 .* rerank\)\ndocs +\1/docs ", text, re.MULTILINE)
    example = next(line for line in text.splitlines() if line.startswith("curl"))
    assert "/v2/models/my-model/infer" in example


def check_that_child_processes_end_with_a_killed_launcher(process: subprocess.Popen[str]) -> None:
    children = descendants(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 15
    while alive(children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(children) == []
    for region in regions(process):
        region.unlink()


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


def test_token_auth_exposes_only_the_door_and_hides_secrets(tmp_path):
    """127.0.0.2 stands for an address that other machines can reach."""
    secrets = ["--admin-token", "adm1n", "--auth-tokens=t0ken"]
    with serving(tmp_path, "--host=127.0.0.2", "--auth-mode=token", *secrets, num_ports=5) as (process, _):
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert (line[line.index(b"--admin-token") + 1], b"--auth-tokens=*****" in line) == (b"*****", True)
        for each in descendants(process.pid):
            assert not {b"adm1n", b"t0ken"} & set(Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0"))
        ports = [int(port) for port in re.findall(rb"-port=(\d+)", b"\0".join(line))]
        assert [is_open("127.0.0.2", port) for port in ports] == [False] * 4 + [True]
        assert [is_open("127.0.0.1", port) for port in ports] == [True] * 4 + [False]
        door, body = f"http://127.0.0.2:{ports[4]}", {"items": ["a"]}
        assert httpx.post(f"{door}/v1/encode/{MINILM}", json=body).status_code == 401
        bearer = {"Authorization": "Bearer t0ken"}
        assert httpx.post(f"{door}/v1/encode/{MINILM}", json=body, headers=bearer, timeout=60).status_code == 200
        # The door asks the controller, which asks for a token.
        wait_for(lambda: httpx.get(f"{door}/v1/models", headers=bearer).json()["models"][0]["state"] == "loaded")
        assert httpx.get(f"http://127.0.0.1:{ports[3]}/v1/models").status_code == 401
        table, _ = sie("status", f"--url={door}", "--auth-tokens=t0ken").communicate(timeout=30)
        assert re.search(rf"{MINILM} .* loaded ", table), table
        _, refused = sie("encode", MINILM, "a", f"--url={door}").communicate(timeout=30)
        assert "this is SIE's HTTP door, not Triton; Triton can be reached on the server's machine" in refused
        flags = [f"--controller-port={ports[3]}", f"--data-dir={tmp_path}", "--admin-token=adm1n"]
        table, _ = sie("status", "--json", *flags).communicate(timeout=30)
        assert '"resident"' in table


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_an_invalid_model_file_and_missing_weights_fail_only_their_models(tmp_path, tiny_directory):
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny.yaml").write_text(tiny_model_file(TINY, tiny_directory))
    (models / "gone.yaml").write_text(tiny_model_file("test/gone", tmp_path / "nowhere"))
    with serving(tmp_path / "data", f"--models-dir={models}", num_ports=5) as (process, address):
        assert process.stderr is not None
        *_, controller, door = ports_of(process)
        wrong = tiny_model_file("my/wrong", tiny_directory, dim=65)
        (models / "wrong.yaml").write_text(wrong)
        line = next(line for line in process.stderr if line.startswith("not served: "))
        said = f"{models}/wrong.yaml: tasks.encode.dense.dim: must be 64, as in {tiny_directory} (given 65)"
        assert line == f"not served: {said}\n"
        table = sie("status", f"--controller-port={controller}").communicate(timeout=60)[0]
        assert table.splitlines()[-1] == f"not served: {said}"
        asked = urllib.request.Request(f"http://127.0.0.1:{door}/v1/encode/my/wrong", data=b'{"items": ["a"]}')
        asked.add_header("Content-Type", "application/json")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(asked, timeout=60)
        message = json.loads(caught.value.read())["detail"]["message"]
        assert message.startswith("model: my/wrong is not served: wrong.yaml: tasks.encode.dense.dim: must be 64")
        assert "/" not in message.removeprefix("model: my/wrong")
        with SIEClient(address) as client:
            for _ in range(2):
                with pytest.raises(LoadError, match="nowhere is not a directory"):
                    client.encode("test/gone", "hello")
            assert client.encode(TINY, "hello")["dense"].shape == (64,)


def ports_of(process: subprocess.Popen[str]) -> list[int]:
    """Ports of the running server, in the order of PORT_FLAGS."""
    assert isinstance(process.args, list)
    given = dict(str(argument).split("=", 1) for argument in process.args if "-port=" in str(argument))
    return [int(given[flag]) for flag in PORT_FLAGS if flag in given]
