"""Checks of parameters that are JSON. Each raises InputError saying where the value is wrong."""

from dataclasses import dataclass
from typing import Any

from sie_triton.contract.findings import PLACE
from sie_triton.contract.parameters import encodable
from sie_triton.errors import InputError


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Limits of the tasks of a request."""

    max_name_characters: int = 1000
    max_characters: int = 65_536  # of a parameter in JSON
    max_classes: int = 1024  # of all tasks together
    max_fields: int = 256
    max_choices: int = 1024  # of all fields together
    max_depth: int = 8


LIMITS = TaskLimits()


def name_of(value: Any, where: str) -> str:
    """Return the value if it is a string that can be both a label for the model and a key in the result."""
    if not isinstance(value, str) or not value.strip() or len(value) > LIMITS.max_name_characters:
        raise InputError.at(
            where, f"must be a string of at most {LIMITS.max_name_characters} characters that is not blank"
        )
    if value == PLACE:
        raise InputError.at(where, f"{PLACE} is a reserved name; choose another")
    return encodable(value, where)


def description_of(value: Any, where: str) -> str:
    """Return the description; empty if `value` is None."""
    if value is not None and not isinstance(value, str):
        raise InputError.at(where, "description must be a string")
    return encodable(value or "", where)


def threshold_of(value: Any, where: str) -> float | None:
    """Return the threshold; None is that of the request."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise InputError.at(where, "threshold must be a number from 0 to 1")
    return float(value)


def only(value: Any, allowed: tuple[str, ...], where: str) -> dict[str, Any]:
    """Return the object if it has no keys other than `allowed`."""
    if not isinstance(value, dict):
        raise InputError.at(where, f"must be a JSON object with {', '.join(allowed)}")
    for key in value:
        if key not in allowed:
            raise InputError.at(where, f"{key[:80]!r} is unknown here; allowed are {', '.join(allowed)}")
    return value
