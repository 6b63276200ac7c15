"""A worker in a network namespace of its own is cut off from the queue for half a minute, under load."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from sie_triton.cluster.permissions import CONFIG, GATEWAY, PASSWORDS, SIDECAR
from sie_triton.cluster.up import PORTS, nats_config
from sie_triton.system.host.ports import free_ports
from tests.conftest import tiny_model_file
from tests.support.controller import wait_for
from tests.support.in_cluster import is_ready
from tests.support.killing import Clients
from tests.support.models import save_bert
from tests.support.nats import HOST, NatsServer
from tests.support.signals import heed_signals

heed_signals()

MODELS = ("t/m0", "t/m1")
NAMESPACE, HERE, THERE = "sie-far", "10.77.0.1", "10.77.0.2"
CUT_S = 30

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip, to make a network namespace"
    ),
]


class Link:
    """A network namespace, joined to this one by a pair of interfaces. Use as a context manager."""

    def __enter__(self) -> "Link":
        self._ip(f"netns add {NAMESPACE}")
        self._ip(f"link add sie0 type veth peer name sie1 netns {NAMESPACE}")
        self._ip(f"addr add {HERE}/24 dev sie0")
        self._ip(f"-n {NAMESPACE} addr add {THERE}/24 dev sie1")
        for interface in ("lo", "sie1"):
            self._ip(f"-n {NAMESPACE} link set {interface} up")
        self.join()
        return self

    def __exit__(self, *_: object) -> None:
        self._ip(f"netns del {NAMESPACE}")

    def cut(self) -> None:
        self._ip("link set sie0 down")

    def join(self) -> None:
        self._ip("link set sie0 up")

    def _ip(self, arguments: str) -> None:
        subprocess.run(["ip", *arguments.split()], check=True)


class OpenNatsServer(NatsServer):
    """nats-server that other machines reach."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._config.write_text(nats_config("0.0.0.0", self.port, str(directory / "store")))


@contextmanager
def running(log: Path, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[None]:
    """Run `sie-triton` with these arguments."""
    command = [*prefix, str(Path(sys.executable).with_name("sie-triton")), *arguments]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def test_a_worker_that_is_cut_off_is_replaced_and_comes_back(tmp_path: Path, minilm_directory: Path):
    (tmp_path / "models").mkdir()
    tiny = save_bert(tmp_path / "bert", minilm_directory)
    for model in MODELS:
        (tmp_path / "models" / f"{model[2:]}.yaml").write_text(tiny_model_file(model, tiny))
    http, grpc, config, *ports = free_ports(3 + len(PORTS))
    of_worker = [f"--{name.replace('_', '-')}={port}" for name, port in zip(PORTS, ports, strict=True)]
    with ExitStack() as stack:
        link = stack.enter_context(Link())
        nats = stack.enter_context(OpenNatsServer(tmp_path))

        def user(name: str) -> list[str]:
            return [f"--nats-user={name}", f"--nats-password={nats.passwords[PASSWORDS[name]]}"]

        def worker(name: str, address: str, *prefix: str) -> None:
            flags = [f"--data-dir={tmp_path / name}"]
            serve = ["serve", *MODELS, "--no-door", f"--models-dir={tmp_path / 'models'}", *flags, *of_worker[:-1]]
            ours = [each for each in of_worker if not each.startswith(("--http", "--metrics"))]
            queue = [f"--nats-url=nats://{address}:{nats.port}", f"--worker-id={name}", *user(SIDECAR)]
            stack.enter_context(running(tmp_path / f"{name}.serve", *serve, prefix=prefix))
            stack.enter_context(running(tmp_path / f"{name}.sidecar", "sidecar", *queue, *flags, *ours, prefix=prefix))

        service = ["config-service", f"--nats-url={nats.url}", *user(CONFIG), f"--config-port={config}"]
        stack.enter_context(running(tmp_path / "config.log", *service, f"--data-dir={tmp_path / 'config'}"))
        worker("near", HOST)
        worker("far", HERE, "ip", "netns", "exec", NAMESPACE)
        gateway = ["gateway", f"--nats-url={nats.url}", *user(GATEWAY), f"--door-port={http}", f"--grpc-port={grpc}"]
        stack.enter_context(running(tmp_path / "gateway.log", *gateway, f"--data-dir={tmp_path / 'gateway'}"))
        url = f"http://{HOST}:{http}"
        wait_for(lambda: is_ready(url))

        def ready() -> list[str]:
            return sorted(each["name"] for each in httpx.get(f"{url}/health").json()["workers"] if each["healthy"])

        wait_for(lambda: ready() == ["far", "near"])
        with Clients([f"{HOST}:{grpc}"], ["t__m0", "t__m1"]) as clients:
            clients.more(200)
            link.cut()
            since = time.monotonic()
            wait_for(lambda: ready() == ["near"])
            clients.more(200)
            time.sleep(max(0.0, CUT_S - (time.monotonic() - since)))
            link.join()
            wait_for(lambda: ready() == ["far", "near"])
            clients.more(200)
        print(f"{clients.num_right} answers, the slowest after {clients.slowest_s:.1f} s")
        assert (clients.wrong, dict(clients.failures)) == ([], {})
