"""A JSON body of somebody else's HTTP, taken field by field."""

from collections.abc import Mapping
from typing import Any

from sie_triton.contract.parameters import shown
from sie_triton.errors import InputError

# What an answer here is made of: a client that asks for others has another route.
OURS = ("output_types", "output_dtype")


class Fields:
    """What is left over when all that a route knows is taken are request parameters: the model says which it has.

    null stands for a field that is not there. InputError begins with the name of the field.
    """

    def __init__(self, body: Any) -> None:
        if not isinstance(body, Mapping):
            raise InputError(f"body: must be a JSON object, it is {_kind(body)}")
        self._left = {name: value for name, value in body.items() if value is not None}

    def text(self, name: str, default: str | None = None) -> str:
        value = self._needed(name, "a string", default)
        if not isinstance(value, str):
            raise InputError(f"{name}: must be a string, it is {_kind(value)}")
        return value

    def texts(self, name: str) -> list[str]:
        """One string or a list of some."""
        value = self._needed(name, "a string or a list of strings")
        return [value] if isinstance(value, str) else _texts(value, name, "a string or a list of strings")

    def several(self, name: str) -> list[str]:
        """A list of strings."""
        return _texts(self._needed(name, "a list of strings"), name, "a list of strings")

    def boolean(self, name: str, default: bool) -> bool:
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise InputError(f"{name}: must be true or false, it is {_kind(value)}")
        return value

    def count(self, name: str) -> int | None:
        """From 1; None where it is not there."""
        value = self._left.pop(name, None)
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"{name}: must be an integer from 1, it is {shown(value)}")
        return value

    def choice(self, name: str, *choices: str) -> str | None:
        """None where it is not there."""
        value: str | None = self._left.pop(name, None)
        if value is not None and value not in choices:
            raise InputError(f"{name}: must be one of {', '.join(choices)}, it is {shown(value)}")
        return value

    def look(self, name: str) -> Any:
        """Without taking it; None where it is not there."""
        return self._left.get(name)

    def given(self, name: str) -> Any:
        """None where it is not there."""
        return self._left.pop(name, None)

    def options(self, **given: Any) -> dict[str, Any]:
        """Request parameters: what is left over, under those `given` that are not None."""
        for name in OURS:
            if name in self._left:
                raise InputError(f"{name}: cannot be asked for here; /v1/encode takes it")
        return self._left | {name: value for name, value in given.items() if value is not None}

    def _needed(self, name: str, wanted: str, default: Any = None) -> Any:
        value = self._left.pop(name, default)
        if value is None:
            raise InputError(f"{name}: is missing; give {wanted}")
        return value


def _texts(value: Any, name: str, wanted: str) -> list[str]:
    """At least one."""
    if not isinstance(value, list):
        raise InputError(f"{name}: must be {wanted}, it is {_kind(value)}")
    if not value:
        raise InputError(f"{name}: is empty; give at least one text")
    for i, each in enumerate(value):
        if not isinstance(each, str):
            raise InputError(f"{name}[{i}]: must be a string, it is {_kind(each)}")
    return value


def _kind(value: Any) -> str:
    """What JSON calls it.

    >>> _kind({}), _kind(True), _kind(1.5), _kind(None)
    ('an object', 'a boolean', 'a number', 'null')
    """
    names = {dict: "an object", list: "a list", bool: "a boolean", str: "a string", type(None): "null"}
    return names.get(type(value), "a number")
