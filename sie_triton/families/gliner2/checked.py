"""Parameters that are JSON: what is in them, or InputError that says where it is wrong."""

import json
from typing import Any

from sie_triton.contract.findings import PLACE
from sie_triton.errors import InputError

MAX_NAME = 1000


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(f"{where}: is not valid JSON ({str(exc)[:80]})") from exc


def name_of(value: Any, where: str) -> str:
    """A text that the model can be asked for, and that an answer can hold as a key."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME:
        raise InputError(f"{where}: must be a text of a word or more, of at most {MAX_NAME} characters")
    if value == PLACE:
        raise InputError(f"{where}: {PLACE} is a name of our own; give another")
    return _encodable(value, where)


def description_of(value: Any, where: str) -> str:
    """None is none."""
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: description must be a text")
    return _encodable(value or "", where)


def threshold_of(value: Any, where: str) -> float | None:
    """None is that of the request."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise InputError(f"{where}: threshold must be a number from 0 to 1")
    return float(value)


def only(value: Any, allowed: tuple[str, ...], where: str) -> dict[str, Any]:
    """An object with no other keys than these."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: must be a JSON object with {', '.join(allowed)}")
    for key in value:
        if key not in allowed:
            raise InputError(f"{where}: {key[:80]!r} is unknown here; allowed are {', '.join(allowed)}")
    return value


def _encodable(text: str, where: str) -> str:
    """JSON can write half a character, which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InputError(f"{where}: holds half a character (\\u{ord(text[exc.start]):04x})") from exc
    return text
