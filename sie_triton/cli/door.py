"""`sie-triton door`: the door alone, in front of a Triton that was started separately."""

from typing import Any

import click

from sie_triton.cli.options import settings_options
from sie_triton.errors import ServerError
from sie_triton.server import preflight
from sie_triton.settings import settings_of_server
from sie_triton.settings.door import DoorSettings
from sie_triton.settings.telemetry import TelemetrySettings
from sie_triton.system.printing import echo
from sie_triton.system.processes.limits import raise_limit
from sie_triton.system.processes.signals import until_signal, wait_for_signal

ADDRESSES = ("host", "triton_host", "grpc_port", "controller_port", "data_dir", "admin_token")
OF_DOOR = (name for name in DoorSettings.model_fields if name != "door")


@click.command()
@settings_options([*ADDRESSES, *TelemetrySettings.model_fields, *OF_DOOR])
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
