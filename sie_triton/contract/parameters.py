"""Request parameters: their types and allowed values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sie_triton.errors import InputError

ParameterValue = bool | int | float | str

# Types whose values `shown` prints.
SCALARS = (bool, int, float, type(None))

# An error repeats at most this many characters of an unknown parameter's name.
LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class Parameter:
    """A request parameter: its type and allowed values."""

    name: str
    type: type[ParameterValue]
    choices: tuple[str, ...] = ()
    is_list: bool = False  # a comma-separated string whose members must each be in `choices`
    minimum: int | None = None
    maximum: int | None = None
    max_characters: int | None = None
    for_prompt: bool = False  # only preprocess reads it; later steps do not get it
    hint: str = ""  # appended to the error for a wrong value
    doc: str = field(default="", compare=False)

    def check(self, value: Any) -> ParameterValue:
        """Return `value`, or raise InputError with the parameter and its allowed values. 8.0 is an integer, as in JSON.

        >>> Parameter("dimensions", int, minimum=1).check(8.0)
        8
        """
        if not (self._has_type(value) and self._is_choice(value) and self._in_range(value) and self._is_short(value)):
            raise InputError.at(
                f"parameter {self.name}", f"{shown(value)} is not allowed; give {self.allowed()}{self.hint}"
            )
        return self.type(value)

    def allowed(self) -> str:
        """Describe the allowed values in words.

        >>> Parameter("dimensions", int, minimum=1, maximum=384).allowed()
        'an integer from 1 to 384'
        """
        if self.choices:
            return f"{'a comma-separated list of' if self.is_list else 'one of'} {', '.join(self.choices)}"
        noun = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}[self.type]
        if self.minimum is not None and self.maximum is not None:
            return f"{noun} from {self.minimum} to {self.maximum}"
        return f"{noun} of at most {self.max_characters} characters" if self.max_characters is not None else noun

    def _has_type(self, value: Any) -> bool:
        return type(value) is self.type or (self.type is float and type(value) is int) or self._is_whole(value)

    def _is_whole(self, value: Any) -> bool:
        return self.type is int and type(value) is float and value.is_integer()

    def _is_choice(self, value: Any) -> bool:
        members = value.split(",") if self.is_list else [value]
        return not self.choices or all(member in self.choices for member in members)

    def _is_short(self, value: Any) -> bool:
        return self.max_characters is None or len(value) <= self.max_characters

    def _in_range(self, value: Any) -> bool:
        above = self.minimum is None or value >= self.minimum
        return above and (self.maximum is None or bool(value <= self.maximum))


def parsed_json(text: str, where: str) -> Any:
    """Return the value of `text`, which is JSON; InputError names the place `where` if it is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError.at(where, f"is not valid JSON ({str(exc)[:80]})") from exc


def shown(value: Any, max_characters: int = 80) -> str:
    """Return the repr of a scalar, cut to about `max_characters`; for any other value, its type.

    Takes constant time and memory.

    >>> shown("x" * 100, 8)
    "'xxxxxxx… (100 characters)"
    >>> shown([[1]]), shown(0.5)
    ('a value of type list', '0.5')
    """
    if isinstance(value, str):
        text = repr(value[:max_characters])
        is_whole = len(text) <= max_characters and len(value) <= max_characters
        return text if is_whole else f"{text[:max_characters]}… ({len(value)} characters)"
    return repr(value) if isinstance(value, SCALARS) else f"a value of type {type(value).__name__}"


def encodable(text: str, where: str) -> str:
    """Return `text`, or raise InputError: JSON can contain lone surrogates, which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InputError.at(where, f"contains a lone surrogate (\\u{ord(text[exc.start]):04x})") from exc
    return text


def check_parameters(given: Mapping[str, Any], allowed: Mapping[str, Parameter]) -> dict[str, ParameterValue]:
    """Return the request parameters `given`. Raise InputError for the first that is unknown or has a wrong value."""
    for name in given:
        if name not in allowed:
            known = ", ".join(sorted(allowed))
            raise InputError.at(f"parameter {name[:LONGEST_NAME]}", f"unknown here; allowed are {known}")
    return {name: allowed[name].check(value) for name, value in given.items()}
