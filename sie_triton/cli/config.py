"""`sie-triton config`: the settings that `serve` would use, and where their values come from."""

import json
from typing import Any

import click
from rich.text import Text

from sie_triton.cli.options import SettingsCommand, settings_options, warn_of_unknown_variables
from sie_triton.settings import Settings, read_settings
from sie_triton.settings.sources import DEFAULT, SECRETS, file_settings, source_of
from sie_triton.system.printing import Console, echo


@click.command(cls=SettingsCommand)
@click.option("--changed", is_flag=True, help="show only settings that are not at their default")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per setting")
@settings_options(list(Settings.model_fields))
def config(changed: bool, as_json: bool, **flags: Any) -> None:
    """Show each setting that `serve`, or a part of a cluster, would use here: its value, and where that comes from.

    \b
    sie-triton config                           with the variables and the sie.yaml of this shell and directory
    sie-triton config --max-batch-requests 8    with a flag of serve
    sie-triton config --changed --json          only what is set, for programs
    """
    warn_of_unknown_variables()
    console = Console()
    resolved = read_settings(**flags).model_dump(mode="json")
    given, in_file = {name for name, value in flags.items() if value is not None}, file_settings()
    for name, field in Settings.model_fields.items():
        source, value = source_of(name, given, in_file), shown(name, resolved[name])
        if changed and source == DEFAULT:
            continue
        if as_json:
            echo(json.dumps({"name": name, "value": value, "source": source, "effect": field.description}))
            continue
        console.print_line(Text.assemble((name, "bold"), f": {value}  ({source})"))
        console.print_line(f"    {field.description}", style="dim")


def shown(name: str, value: Any) -> Any:
    return "(hidden)" if value and name in SECRETS else "" if value is None else value
