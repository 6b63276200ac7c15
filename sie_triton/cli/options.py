"""Command-line options, generated from the settings so that flags and variables stay the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from pydantic.fields import FieldInfo

from sie_triton.settings import Settings, read_settings, unknown_variables
from sie_triton.settings.groups import GROUPS, USUAL
from sie_triton.settings.secrets import tokens
from sie_triton.settings.sources import PREFIX, flag
from sie_triton.system.printing import echo

if TYPE_CHECKING:
    from sie_triton.client.address import Address

Command = TypeVar("Command", bound=Callable[..., Any])


# Options of the address of a running server.
ADDRESS = ("url", "ca_file", "host", "grpc_port", "controller_port", "auth_tokens")

# Settings by which a command calls the controller of a running server.
RUNNING = ("host", "controller_port", "data_dir", "admin_token")

# Key of a context that shows all options.
ALL = "sie_triton.all_options"


class SettingsCommand(click.Command):
    """Command with many settings: --help shows the usual ones, and --help-all all of them, in groups."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        flags = {"is_flag": True, "is_eager": True, "expose_value": False}
        self.params.append(click.Option(["--help-all"], help="show all options and exit", callback=_show_all, **flags))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        groups = {"Options": [name for name in records if name not in Settings.model_fields]}
        groups |= {title: names.split() for title, names in GROUPS.items()}
        hidden = set() if ctx.meta.get(ALL) else Settings.model_fields.keys() - USUAL.split()
        for title, names in groups.items():
            if found := [record for name in names if name not in hidden and (record := records.get(name))]:
                with formatter.section(title):
                    formatter.write_dl(found)


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[ALL] = True
        echo(ctx.get_help())
        ctx.exit()


def settings_options(
    names: Sequence[str], texts: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for each of the settings `names` to a command.

    The help of an option is the description of its setting, or what `texts` has for it.
    """

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            field = Settings.model_fields[name]
            command = _option(name, field, texts.get(name, field.description or ""))(command)
        return command

    return decorate


def running_options(names: Sequence[str]) -> Callable[[Command], Command]:
    """Return a decorator as that of `settings_options`, for a command that calls a running server at --host."""
    return settings_options(names, {"host": "address of the running server"})


def read_model_settings(**flags: Any) -> Settings:
    """Read the settings of a command that reads model files: those of a store are copied, and the cache is ready."""
    from sie_triton.models.weights.local_cache import use_local_cache
    from sie_triton.pipeline.render.models_mirror import bundled, mirrored

    settings = read_settings(**flags)
    use_local_cache(settings.local_cache)
    return bundled(mirrored(settings))


def settings_of_running(**flags: Any) -> Settings:
    """Read the settings of a command that calls a running server: --host is where its Triton and controller listen."""
    return read_settings(**flags, triton_host=flags.get("host"))


CA_FILE = click.option(
    "--ca-file", type=click.Path(exists=True, dir_okay=False), help="with TLS, the certificates to trust, in PEM"
)


def address_options(command: Command) -> Command:
    """Add the options ADDRESS, from which `address_of` makes the address of a running server's Triton."""
    command = running_options(["host", "grpc_port", "controller_port", "auth_tokens"])(command)
    command = CA_FILE(command)
    about = "server: http://host:port, grpc://host:port, or https and grpcs for TLS; default: --host and --grpc-port"
    return click.option("--url", metavar="URL", help=about)(command)


def address_of(*, url: str | None, ca_file: str | None, **flags: Any) -> "Address":
    """Return the address that the options ADDRESS describe, with the first of `auth_tokens`.

    The environment and sie.yaml tell of a server: its tokens and its controller's port belong to `host`, or to
    `gateway_url`, and not to a `url`.
    """
    from sie_triton.client.address import Address

    settings = settings_of_running(**flags)
    told = {name for name in flags if url is None or flags[name] is not None}
    token = next(iter(tokens(settings.auth_tokens)), "") if "auth_tokens" in told else ""
    of_cluster = settings.gateway_url if "gateway_url" in flags else ""
    place = url or of_cluster or f"grpc://{settings.inner_host}:{settings.grpc_port}"
    address = Address.parse(place, token, ca_file or "")
    return replace(address, controller_port=settings.controller_port) if "controller_port" in told else address


def warn_of_unknown_variables() -> None:
    for line in unknown_variables():
        echo(f"warning: {line}", err=True)


def _option(name: str, field: FieldInfo, meaning: str) -> Callable[[Command], Command]:
    default = field.get_default(call_default_factory=True)
    shown = "" if default in (None, "") else f"; default {default}"
    declaration, text = flag(name), f"{meaning} [{PREFIX}{name.upper()}{shown}]"
    members = get_args(field.annotation)
    choices = [c for member in members for c in ([member] if isinstance(member, str) else get_args(member))]
    if field.annotation is bool:
        return click.option(f"{declaration}/--no-{declaration[2:]}", name, default=None, help=text)
    return click.option(declaration, name, metavar="|".join(choices) if choices else "VALUE", help=text)
