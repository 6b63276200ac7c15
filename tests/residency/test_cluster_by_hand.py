"""The commands of docs/cluster.md for several machines, as they stand there, with this machine's addresses."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from benchmarks.ports import free_ports
from sie_triton.cluster.permissions import PASSWORDS
from sie_triton.cluster.up import nats_server, passwords
from tests.conftest import tiny_model_file
from tests.server.test_serve import port_flags, sie
from tests.support.controller import wait_for
from tests.support.models import save_bert

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"

FIRST, NEW = "t/first", "t/new"


def commands() -> dict[str, list[str]]:
    """Return the commands by their first words, such as "serve" and "cluster add"."""
    found = {}
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("sie-triton "):
                words = shlex.split(line.partition(" > ")[0])[1:]
                found[" ".join(words[:2] if words[0] == "cluster" else words[:1])] = words
    return found


@contextmanager
def running(arguments: list[str], ready: str | None) -> Iterator[None]:
    """Run a command; `ready` is the line that it prints then."""
    process = sie(*arguments)
    try:
        assert process.stdout is not None
        assert ready is None or ready in iter(process.stdout.readline, "")
        yield
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def nats(root: Path, words: list[str], port: int, secrets: dict[str, str]) -> Iterator[None]:
    """Run nats-server with the configuration that the command prints."""
    process = sie(*words, "--host=127.0.0.1", f"--port={port}", f"--store={root / 'store'}")
    (root / "nats.conf").write_text(process.communicate()[0])
    command = [nats_server(), "-c", str(root / "nats.conf"), "-l", str(root / "nats.log")]
    with subprocess.Popen(command, env={**os.environ, **secrets}) as server:
        try:
            yield
        finally:
            server.terminate()


def status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.HTTPError:
        return 0


def test_the_documented_commands_make_a_cluster(tmp_path: Path, minilm_directory: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the documented @FILEs
    by_name, secrets = commands(), passwords()
    for user, variable in PASSWORDS.items():
        (tmp_path / f"{user}.password").write_text(secrets[variable])
    (tmp_path / "admin.token").write_text("admin")
    directory = save_bert(tmp_path / "bert", minilm_directory)
    (tmp_path / "models").mkdir()
    for name in (FIRST, NEW):
        path = tmp_path / "models" / f"{name.removeprefix('t/')}.yaml"
        path.write_text(tiny_model_file(name, directory))
    queue, http, config, metrics, *of_worker = free_ports(8)
    here = {
        "queue:4222": f"127.0.0.1:{queue}",
        "config:8081": f"127.0.0.1:{config}",
        "0.0.0.0": "127.0.0.1",
        "BAAI/bge-m3": FIRST,
    }

    def words_of(name: str, *more: str) -> list[str]:
        words = by_name[name]
        for there, replacement in here.items():
            words = [each.replace(there, replacement) for each in words]
        return [*words, *more]

    data, models = f"--data-dir={tmp_path / 'worker'}", f"--models-dir={tmp_path / 'models'}"
    ports = [each for each in port_flags(of_worker) if each != "--no-door"]
    beside = [each for each in ports if each.startswith(("--grpc-port", "--metrics-port", "--controller-port"))]
    gateway = [f"--door-port={http}", f"--grpc-port={free_ports(1)[0]}", f"--data-dir={tmp_path / 'gateway'}"]
    with ExitStack() as stack:

        def start(name: str, ready: str | None, *more: str) -> None:
            stack.enter_context(running(words_of(name, *more), ready))

        stack.enter_context(nats(tmp_path, words_of("cluster nats-config"), queue, secrets))
        start("gateway", "SIE gateway started\n", *gateway)
        start("config-service", None, f"--config-port={config}", f"--data-dir={tmp_path / 'config'}")
        start("serve", "SIE ready\n", data, models, *ports)
        start("sidecar", None, data, *beside, f"--worker-metrics-port={metrics}")
        wait_for(lambda: status(f"http://127.0.0.1:{metrics}/readyz") == 200)
        wait_for(lambda: status(f"http://127.0.0.1:{http}/readyz") == 200)
        wait_for(lambda: status(f"http://127.0.0.1:{config}/readyz") == 200)

        def answer(model: str) -> int:
            items = {"items": [{"text": "a"}]}
            return httpx.post(f"http://127.0.0.1:{http}/v1/encode/{model}", json=items, timeout=60).status_code

        wait_for(lambda: answer(FIRST) == 200)
        wait_for(lambda: answer(NEW) == 200)  # a known model, which a mention serves
        here["BAAI/bge-m3"] = str(tmp_path / "models" / "new.yaml")
        assert done(words_of("cluster add")) == f"{NEW}: epoch 1\n"
        here["BAAI/bge-m3"] = NEW
        wait_for(lambda: answer(NEW) == 200)
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{http}/health").json()["config_epoch"] == 1)
        assert "epoch of the model files: 1" in done(["status", f"--gateway-url=http://127.0.0.1:{http}"])
        assert done(words_of("cluster rm")) == f"{NEW}: removed, epoch 2\n"


def done(arguments: list[str]) -> str:
    process = sie(*arguments)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out
