"""Command line: `sie-triton serve | render | models | lora | env | encode | score | extract | eval` and others."""

import sys
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import click

from sie_triton.cli.cache import cache
from sie_triton.cli.cluster import cluster, config_service, gateway, sidecar
from sie_triton.cli.config import config
from sie_triton.cli.environments import env
from sie_triton.cli.evals import evaluate
from sie_triton.cli.lora import lora
from sie_triton.cli.models import models
from sie_triton.cli.options import (
    CA_FILE,
    RUNNING,
    SettingsCommand,
    address_of,
    read_model_settings,
    running_options,
    settings_of_running,
    settings_options,
    warn_of_unknown_variables,
)
from sie_triton.cli.top import top
from sie_triton.errors import ServerError, SIEError
from sie_triton.models.weights.local_cache import use_local_cache
from sie_triton.server import preflight
from sie_triton.settings import STAGE_SETTINGS, Settings, read_settings, settings_of_server
from sie_triton.settings.cluster import ClusterSettings
from sie_triton.settings.door import DoorSettings
from sie_triton.settings.sources import SECRETS, flag
from sie_triton.settings.telemetry import TelemetrySettings
from sie_triton.system.printing import echo
from sie_triton.system.processes.command_line import blank
from sie_triton.system.processes.limits import raise_limit
from sie_triton.system.processes.signals import ends_silently, until_signal, wait_for_signal

RENDER_SETTINGS = (
    "models_dir",
    "model_filter",
    "bundle",
    "environments_dir",
    "local_cache",
    "preload_models",
    "max_batch_wait_ms",
    "default_compute_precision",
    *STAGE_SETTINGS,
)


# Commands that are imported when they are called: the client that they need takes as long to import as all others.
OF_CLIENT = ("encode", "score", "extract")


class Commands(click.Group):
    """The commands, those OF_CLIENT among them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *OF_CLIENT])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in OF_CLIENT:
            return super().get_command(ctx, cmd_name)
        found: click.Command = getattr(import_module(f"sie_triton.cli.{cmd_name}"), cmd_name)
        return found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="sie-triton")
def cli() -> None:
    """Encode, score and extract with NVIDIA Triton: many models on few devices.

    \b
    sie-triton serve                         the demo model, all-MiniLM-L6-v2
    sie-triton serve BAAI/bge-small-en-v1.5  a model on the hub
    sie-triton serve ./my-model              a directory of sentence-transformers, PyLate or transformers

    Each setting is a flag, an SIE_ environment variable, or a key of sie.yaml. A flag overrides a variable, and a
    variable overrides the file.
    """


@cli.command(cls=SettingsCommand)
@click.argument("models", nargs=-1)
@click.option("--verbose", is_flag=True, help="show Triton's log here instead of writing it to a file")
@click.option("--all", "all_models", is_flag=True, help="serve all known models from the start, for Triton's clients")
@settings_options([name for name in Settings.model_fields if name not in ClusterSettings.model_fields])
def serve(models: tuple[str, ...], verbose: bool, all_models: bool, **flags: Any) -> None:
    """Start a Triton server for MODELS and run it until Ctrl-C or SIGTERM.

    A model is a name from a model file, the path of a model file, a directory that sentence-transformers, PyLate or
    transformers saved, or a hub id. Its weights are loaded by its first request, or at start-up if --preload-models
    names it.

    Other known models (sie-triton models ls --known) are served once a request to the door or of SIEClient names them.
    Triton's own clients need models that are served: MODELS, --all, or sie-triton models add.
    """
    with ends_silently():
        from sie_triton.pipeline.render.known import known_names
        from sie_triton.server.serve import serve as run

    settings = settings_of_server(**flags)
    warn_of_unknown_variables()
    sys.exit(run(settings, (*models, *known_names(settings)) if all_models else models, verbose=verbose))


@cli.command()
@click.argument("models", nargs=-1)
@click.option("--output", type=click.Path(path_type=Path), default="model_repository", show_default=True)
@click.option("--check", "only_check", is_flag=True, help="write nothing; fail if OUTPUT is not up to date")
@click.option(
    "--hook/--no-hook", default=True, help="add the admission hook for Triton's batches to each inference model"
)
@settings_options(RENDER_SETTINGS)
def render(models: tuple[str, ...], output: Path, only_check: bool, hook: bool, **flags: Any) -> None:
    """Write MODELS (default: the demo model) as a Triton model repository."""
    from sie_triton.pipeline.render.build import check_repository, write_repository

    settings = read_model_settings(**flags)
    if only_check:
        differences = check_repository(output, settings, models)
        for line in differences:
            echo(line)
        sys.exit(1 if differences else 0)
    for line in write_repository(output, settings, models, hook=hook):
        echo(line)


CONTROLLER_SETTINGS = (
    "host",
    "triton_host",
    "auth_mode",
    "auth_tokens",
    "grpc_port",
    "controller_port",
    "data_dir",
    "device",
    "gpu_type",
    "bundle",
    "admin_token",
    "memory_limit_bytes",
    "memory_pressure_threshold_percent",
    "min_residency_s",
    "idle_evict_s",
    "load_timeout_s",
    "local_cache",
)


@cli.command()
@settings_options(CONTROLLER_SETTINGS)
def controller(**flags: Any) -> None:
    """Run only the controller, beside a Triton on the same machine with the same data directory.

    `sie-triton serve` starts its own controller.
    """
    from sie_triton.controller.run import run

    settings = read_settings(**flags)
    use_local_cache(settings.local_cache)
    run(settings)


DOOR_SETTINGS = (
    *("host", "triton_host", "grpc_port", "controller_port", "data_dir", "admin_token"),
    *TelemetrySettings.model_fields,
    *(name for name in DoorSettings.model_fields if name != "door"),
)


@cli.command()
@settings_options(DOOR_SETTINGS)
def door(**flags: Any) -> None:
    """Run only the door, on --host, in front of a Triton and a controller on --triton-host.

    `sie-triton serve` starts its own door.
    """
    # What it imports takes as long as all else that the command line imports.
    from sie_triton.server.companions import doors, wait_for_door

    settings = settings_of_server(**flags)
    raise_limit()
    if problems := list(preflight.check_ports({"door-port": (settings.host, settings.door_port)})):
        raise ServerError("\n".join(problems))
    with until_signal(), doors(settings, {}, lambda line: echo(line, err=True)):
        wait_for_door(settings)
        echo("SIE door ready")
        wait_for_signal()


@cli.command()
@click.option("--watch", is_flag=True, help="keep running, and update the table")
@click.option("--json", "as_json", is_flag=True, help="print the data of the table as JSON, once")
@click.option("--svg", type=click.Path(path_type=Path), help="also save the table to this file, as an SVG image")
@click.option("--url", metavar="URL", help="door or gateway, from any machine; default: the controller at --host")
@CA_FILE
@running_options([*RUNNING, "auth_tokens", "gateway_url"])
def status(watch: bool, as_json: bool, svg: Path | None, url: str | None, ca_file: str | None, **flags: Any) -> None:
    """Show all models of a running server: state, memory, last use; of a gateway, the workers of its cluster."""
    from sie_triton.controller.commands import show

    settings = settings_of_running(**flags)
    if url or settings.gateway_url:
        from sie_triton.cluster.commands import show as show_door

        door = address_of(url=url, ca_file=ca_file, **flags)
        show_door(door, watch=watch, as_json=as_json)
        return
    show(settings, watch=watch, as_json=as_json, picture=svg)


@cli.command()
@click.argument("model")
@running_options(RUNNING)
def load(model: str, **flags: Any) -> None:
    """Load the weights of MODEL now, before its first request."""
    from sie_triton.controller.commands import act

    act(settings_of_running(**flags), model, "load")


@cli.command()
@click.argument("model")
@running_options(RUNNING)
def evict(model: str, **flags: Any) -> None:
    """Free the memory of MODEL. Its next request loads it again."""
    from sie_triton.controller.commands import act

    act(settings_of_running(**flags), model, "evict")


cli.add_command(models)
cli.add_command(lora)
cli.add_command(env)
cli.add_command(cache)
cli.add_command(gateway)
cli.add_command(sidecar)
cli.add_command(config_service)
cli.add_command(cluster)
cli.add_command(config)
cli.add_command(top)
cli.add_command(evaluate, name="eval")


def main() -> None:
    """Run the command line. Print an SIEError to stderr without a traceback, and exit with status 2."""
    blank([flag(name) for name in SECRETS])
    try:
        cli(standalone_mode=False)
    except click.ClickException as exc:
        exc.show(said := StringIO())
        echo(said.getvalue(), err=True, nl=False)
        sys.exit(exc.exit_code)
    except click.Abort:
        sys.exit(130)
    except SIEError as exc:
        for line in str(exc).splitlines():
            echo(f"error: {line}", err=True)
        sys.exit(2)
    except OSError as exc:
        echo(f"error: {f'{exc.filename}: {exc.strerror}' if exc.filename else exc}", err=True)
        sys.exit(2)
