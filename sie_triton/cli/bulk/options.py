"""Options that encode, score and extract share: of input, output, connection and request parameters.

Those of parameters are named as the client's arguments and the contract's parameters are.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson

from sie_triton.cli.options import ADDRESS, address_of, address_options
from sie_triton.client.address import Address
from sie_triton.contract import LORA, PAGES

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """Values of the shared options; see `bulk_options`."""

    input: Path | None
    field: str | None
    output: Path | None
    overwrite: bool
    skip_errors: bool
    as_json: bool
    max_concurrency: int | None
    timeout: float | None
    server: Address

    @classmethod
    def taken_from(cls, flags: dict[str, Any]) -> "BulkOptions":
        """Return the values of the shared options, and remove them from `flags`."""
        own = {field.name: flags.pop(field.name) for field in fields(cls) if field.name in flags}
        return cls(**own, server=address_of(**{name: flags.pop(name) for name in ADDRESS}))

    @property
    def is_in_terminal(self) -> bool:
        """True if the output goes to a terminal."""
        return self.output is None and sys.stdout.isatty()

    @property
    def is_for_people(self) -> bool:
        """True if results are shown in a terminal, not as JSON."""
        return self.is_in_terminal and not self.as_json


SHARED = (
    click.option(
        "--input",
        type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
        metavar="FILE",
        help="file with one text per line; .jsonl: one JSON object per line, whose id goes into the output; "
        "-: standard input",
    ),
    click.option("--field", metavar="NAME", help="read JSON lines, with the text in this field; default: text"),
    click.option(
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="file for the results; the same command continues an interrupted run",
    ),
    click.option("--overwrite", is_flag=True, help="start anew, even if the output exists or a run was interrupted"),
    click.option(
        "--skip-errors",
        is_flag=True,
        help='write {"line": …, "error": …} for a line that cannot be used, and go on; exit status 1 at the end',
    ),
    click.option("--json", "as_json", is_flag=True, help="print one JSON object per item, each on its own line"),
    click.option(
        "--max-concurrency",
        type=click.IntRange(1, 1024),
        help="requests at a time, each of at most 512 lines; default: 4, for pairs of score 32",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="timeout of each request with its retries, in seconds; default: 600 s a request, and 30 s of retries",
    ),
    address_options,
)


def bulk_options(command: Command) -> Command:
    """Add the options of input, output and connection to a command."""
    for option in reversed(SHARED):
        command = option(command)
    return command


PROFILE = click.option("--profile", metavar="NAME", help="profile of the model: a predefined set of its options")
LORA_OPTION = click.option("--lora", metavar="NAME", help=LORA.doc)
PAGES_OPTION = click.option("--pages", metavar="PAGES", help=PAGES.doc)


class JsonObject(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            found = value if isinstance(value, dict) else orjson.loads(value)
        except orjson.JSONDecodeError as exc:
            self.fail(f"{value!r} is not JSON ({exc}); give an object, such as '{{\"dimensions\": 128}}'", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{value!r} is not a JSON object; give one, such as '{{\"dimensions\": 128}}'", param, ctx)
        return found


OPTIONS = click.option(
    "--options", type=JsonObject(), default=None, help="further parameters of the model by name, as a JSON object"
)


def client_arguments(given: dict[str, Any], in_options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return keyword arguments for a method of the client, without those that were not given.

    Those named `in_options` become members of the argument `options`.

    >>> client_arguments({"lora": None, "is_query": True, "dimensions": 8, "options": {"a": 1}}, ("dimensions",))
    {'is_query': True, 'options': {'a': 1, 'dimensions': 8}}
    """
    given = {name: value for name, value in given.items() if value is not None}
    further = {**given.pop("options", {}), **{name: given.pop(name) for name in in_options if name in given}}
    return {**given, **({"options": further} if further else {})}
