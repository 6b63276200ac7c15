"""Commands of a cluster: its services, its model files, and a whole cluster on one machine to try it out."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import click

from sie_triton.cli.options import SettingsCommand, settings_options, warn_of_unknown_variables
from sie_triton.errors import ServerError
from sie_triton.server import preflight
from sie_triton.server.terminal import Terminal
from sie_triton.settings import Settings, read_settings, settings_of_server
from sie_triton.settings.cluster import ClusterSettings
from sie_triton.settings.door import DoorSettings
from sie_triton.settings.sources import DEFAULT, file_settings, source_of, variable
from sie_triton.settings.telemetry import TelemetrySettings
from sie_triton.system.printing import echo
from sie_triton.system.processes.limits import raise_limit
from sie_triton.system.processes.signals import until_signal, wait_for_signal

OF_DOOR = [name for name in DoorSettings.model_fields if name != "door"]

# Settings of commands that call the config service.
OF_CLIENT = ["config_service_url", "config_port", "admin_token", "data_dir"]

OF_QUEUE = [name for name in ClusterSettings.model_fields if name.startswith("queue_")]
OF_NATS = [name for name in ClusterSettings.model_fields if name.startswith("nats")]
OF_GATEWAY = ["host", "grpc_port", "data_dir", "pool", "worker_id", "payload_store_url"]
OF_GATEWAY += ["worker_config_poll_interval_ms", "gateway_configured_gpus", "gateway_configured_pools"]
OF_GATEWAY += ["admin_token", "bundle"]
OF_SIDECAR = ["host", "triton_host", "grpc_port", "metrics_port", "controller_port", "data_dir", "auth_mode"]
OF_SIDECAR += ["auth_tokens", "gpu_type", "gpu_count", "device", "memory_pressure_threshold_percent", "admin_token"]
OF_SIDECAR += [name for name in ClusterSettings.model_fields if not name.startswith(("gateway_", "config_", "queue_"))]
OF_CONFIG = ["host", "config_port", "data_dir", "auth_mode", "auth_tokens", "admin_token", "config_producer"]
OF_CONFIG += [*OF_NATS, *OF_QUEUE, "pool"]


@click.command()
@settings_options([*OF_GATEWAY, *OF_NATS, *OF_DOOR, *TelemetrySettings.model_fields])
def gateway(**flags: Any) -> None:
    """Run a gateway: SIE's, OpenAI's and Cohere's HTTP and Triton's gRPC, in front of the workers of a queue.

    It needs nats-server with JetStream at --nats-url, and workers: a server with `sie-triton sidecar` beside it.
    """
    from sie_triton.server.companions import doors

    settings = _settings(flags)
    _check_ports({"door-port": settings.door_port, "grpc-port": settings.grpc_port}, settings)
    module = "sie_triton.cluster.gateway.run"
    terminal = Terminal.of(settings.log_json)
    with until_signal(), doors(settings, {}, terminal.say, module, also_ports=[settings.grpc_port]):
        terminal.announce("SIE gateway started")
        wait_for_signal()


@click.command()
@settings_options([*OF_SIDECAR, *TelemetrySettings.model_fields])
def sidecar(**flags: Any) -> None:
    """Run a sidecar beside a Triton of this machine: it fetches work from the queue, and answers the gateways.

    Start it with the data directory and the ports of `sie-triton serve --no-door`.
    """
    settings = _settings(flags, read_settings)
    from sie_triton.cluster.sidecar.run import run

    _check_ports({"worker-metrics-port": settings.worker_metrics_port}, settings)
    run(settings)


@click.command()
@settings_options([*OF_CONFIG, *TelemetrySettings.model_fields])
def config_service(**flags: Any) -> None:
    """Run the config service, which makes the queue of a cluster, and keeps the model files of all its workers.

    POST /v1/configs/models takes a model file, with the admin token; so does sie-triton cluster add. The files are in
    NATS, so several config services may run, and none has data of its own.
    """
    settings = _settings(flags)
    from sie_triton.cluster.config.run import run

    _check_ports({"config-port": settings.config_port}, settings)
    run(settings)


@click.group()
def cluster() -> None:
    """Change the models of a cluster, or try a cluster out on one machine.

    \b
    sie-triton cluster up --workers 2                 a cluster on this machine
    sie-triton cluster add BAAI/bge-m3                serve a model on all workers; rm removes it
    sie-triton status --gateway-url http://HOST:8080  the workers of a cluster
    """


@cluster.command()
@click.argument("model")
@click.option("--pool", default="", help="only for the workers of this pool")
@settings_options([*OF_CLIENT, "hf_fallback"])
def add(model: str, pool: str, **flags: Any) -> None:
    """Serve MODEL on all workers: a model file, the name of a known model, or a hub id.

    Workers replace a model of the same name without a failed request. Later workers get it, too.
    """
    settings = _settings(flags, read_settings)
    from sie_triton.cli.model_files import text_of
    from sie_triton.cluster.commands import add as run

    run(settings, text_of(model, settings), pool)


@cluster.command()
@click.argument("model")
@click.option("--pool", default="", help="only for the workers of this pool")
@settings_options(OF_CLIENT)
def rm(model: str, pool: str, **flags: Any) -> None:
    """Remove MODEL from all workers. Its requests in progress are completed."""
    settings = _settings(flags, read_settings)
    from sie_triton.cluster.commands import remove

    remove(settings, model, pool)


@cluster.command(cls=SettingsCommand)
@click.argument("models", nargs=-1)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="number of workers")
@settings_options(
    [name for name in Settings.model_fields if not name.startswith("nats") and name not in ("worker_id", "door")]
)
def up(models: tuple[str, ...], workers: int, **flags: Any) -> None:
    """Run nats-server, a gateway, a config service and workers that serve MODELS, until Ctrl-C or SIGTERM.

    The workers share the memory and the cores of this machine, so this is no faster than one server: it is for trying.
    """
    settings = _settings(flags)
    from sie_triton.cluster.up import addresses
    from sie_triton.cluster.up import cluster as running

    _check_ports({"door-port": settings.door_port, "grpc-port": settings.grpc_port}, settings)
    terminal = Terminal.of(settings.log_json)
    with until_signal(), running(settings, models, workers, terminal.say) as of_workers:
        for line in addresses(settings, of_workers):
            terminal.announce(line)
        terminal.announce("SIE cluster ready")
        wait_for_signal()


@cluster.command()
@click.option("--host", default="0.0.0.0", show_default=True, help="address of nats-server")  # noqa: S104
@click.option("--port", default=4222, show_default=True, help="port on which nats-server listens")
@click.option("--store", default="/data", show_default=True, help="directory in which nats-server stores the queue")
def nats_config(host: str, port: int, store: str) -> None:
    """Print a configuration of nats-server with users for gateways, sidecars, config services and operators.

    Each may use its own subjects only. Their passwords are environment variables of nats-server: SIE_GATEWAY_PASSWORD,
    SIE_SIDECAR_PASSWORD, SIE_CONFIG_PASSWORD and SIE_OPERATOR_PASSWORD. Begin each with a letter.
    """
    from sie_triton.cluster.up import nats_config as config

    echo(config(host, port, store), nl=False)


def _settings(flags: dict[str, Any], read: Callable[..., Settings] = settings_of_server) -> Settings:
    if find_spec("nats") is None:
        raise ServerError("a cluster needs the client of NATS: pip install 'sie-triton[cluster]'")
    raise_limit()
    warn_of_unknown_variables()
    _warn_of_the_queue(flags)
    return read(**flags)


def _warn_of_the_queue(flags: dict[str, Any]) -> None:
    """Warn of settings of the queue at a command that does not make it."""
    in_file = file_settings()
    for name in OF_QUEUE:
        source = source_of(name, (), in_file)
        if name not in flags and source != DEFAULT:
            which = source if source == variable(name) else f"{source}: {name}"
            echo(f"warning: {which} has no effect here: the config service makes the queue", err=True)


def _check_ports(ports: dict[str, int], settings: Settings) -> None:
    if problems := list(preflight.check_ports({name: (settings.host, port) for name, port in ports.items()})):
        raise ServerError("\n".join(problems))
