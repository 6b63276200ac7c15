"""Options of request parameters, named as the client's arguments and the contract's parameters are."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
import orjson

from sie_triton.contract import LORA, PAGES

Command = TypeVar("Command", bound=Callable[..., Any])

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
