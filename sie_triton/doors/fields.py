"""Take the fields of a request's body one by one, and check them before any work begins."""

from collections.abc import Mapping, Sequence
from typing import Any

from sie_triton.contract.parameters import LONGEST_NAME, shown
from sie_triton.errors import InputError

# Parameters that choose the form of a response. Only SIE's own routes take them: other dialects have one form.
OURS = ("output_types", "output_dtype")

# Maximum length of a model's name with its profile, in characters.
LONGEST_MODEL = 512

# Maximum number of request parameters, and of characters in all of them: every request to Triton that is made from a
# body carries them.
MAX_OPTIONS = 64
LONGEST_OPTIONS = 250_000

# Maximum number of rank_fields, and of characters in each: every document is searched once for each of them.
MAX_RANK_FIELDS = 16
LONGEST_FIELD = 100

# Cohere's types of vectors, each with the output_dtype that it is made of, and its types of input.
EMBEDDING_TYPES = {
    "float": "float32",
    "base64": "float32",
    "int8": "int8",
    "uint8": "uint8",
    "binary": "ubinary",
    "ubinary": "ubinary",
}
INPUT_TYPES = ("search_document", "search_query", "classification", "clustering", "image")

# Values of fields of other dialects that mean is_query. Without it, a text is a document.
ROLES = {"search_query": True, "search_document": False}  # Cohere's input_type
TASKS = {"retrieval.query": True, "retrieval.passage": False}  # Jina's task
PROMPT_NAMES = {"query": True, "document": False}  # prompt_name of text-embeddings-inference

LARGEST_COUNT = 2**31 - 1

# Bytes of a query file that count as one character of a query text.
FILE_BYTES_A_CHARACTER = 16


class BodyFields:
    """Fields of a JSON object. A null field counts as absent. Fields that a route does not take are request parameters.

    `max_items` is the maximum length of a list. The message of an InputError begins with the name of the field.
    """

    def __init__(self, body: Any, max_items: int) -> None:
        if not isinstance(body, Mapping):
            raise InputError.at("body", f"must be a JSON object, not {kind_of(body)}")
        self._left = {name: value for name, value in body.items() if value is not None}
        self._max_items = max_items

    def model(self) -> str:
        return checked_model(self.text("model"))

    def text(self, name: str) -> str:
        value = self._required(name, "a string")
        if not isinstance(value, str):
            raise InputError.at(name, f"must be a string, not {kind_of(value)}")
        return value

    def texts(self, name: str) -> list[str]:
        """Take one string or a list of at least one string, as a list."""
        value = self._required(name, "a string or a list of strings")
        return [value] if isinstance(value, str) else self._texts(value, name, "a string or a list of strings")

    def several(self, name: str) -> list[str]:
        """Take a list of at least one string."""
        return self._texts(self._required(name, "a list of strings"), name, "a list of strings")

    def items(self, name: str, wanted: str) -> list[Any]:
        """Take a list of at least one value; `wanted` describes it in errors."""
        return self._counted(self._required(name, wanted), name, wanted)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise InputError.at(name, f"must be true or false, not {kind_of(value)}")
        return value

    def count(self, name: str) -> int | None:
        """Take an integer of at least 1; None if absent."""
        value = self._left.pop(name, None)
        number = whole(value)
        if value is not None and (number is None or not 1 <= number <= LARGEST_COUNT):
            raise InputError.at(name, f"must be an integer from 1 to {LARGEST_COUNT}, not {shown(value)}")
        return number

    def choice(self, name: str, *choices: str) -> str | None:
        """Take one of `choices`; None if absent."""
        value: str | None = self._left.pop(name, None)
        if value is not None and value not in choices:
            raise InputError.at(name, f"must be one of {', '.join(choices)}; got {shown(value)}")
        return value

    def look(self, name: str) -> Any:
        """Return the value without taking it; None if absent."""
        return self._left.get(name)

    def given(self, name: str) -> Any:
        """Take any value; None if absent."""
        return self._left.pop(name, None)

    def options(self, **given: Any) -> dict[str, Any]:
        """Return the request parameters: the remaining fields, overridden by those `given` that are not None."""
        for name in OURS:
            if name in self._left:
                raise InputError.at(name, "cannot be set here; use /v1/encode")
        named = {name: value for name, value in given.items() if value is not None}
        for name, value in named.items():
            if self._left.get(name, value) != value:
                raise InputError.at(name, f"contradicts another field, which makes it {shown(value)}; send one of them")
        return checked_options(self._left | named)

    def _required(self, name: str, wanted: str) -> Any:
        value = self._left.pop(name, None)
        if value is None:
            raise InputError.at(name, f"is missing; give {wanted}")
        return value

    def _counted(self, value: Any, name: str, wanted: str) -> list[Any]:
        if not isinstance(value, list):
            raise InputError.at(name, f"must be {wanted}, not {kind_of(value)}")
        if not value:
            raise InputError.at(name, "is empty; give at least one")
        check_count(len(value), name, self._max_items)
        return value

    def _texts(self, value: Any, name: str, wanted: str) -> list[str]:
        for i, each in enumerate(self._counted(value, name, wanted)):
            if not isinstance(each, str):
                raise InputError.at(f"{name}[{i}]", f"must be a string, not {kind_of(each)}")
        found: list[str] = value
        return found


def check_count(number: int, name: str, max_items: int) -> None:
    if number > max_items:
        raise InputError.at(name, f"has {number} entries; SIE_DOOR_MAX_ITEMS allows {max_items} per request")


def check_query(query: str | bytes, items: Sequence[Any], name: str, max_bytes: int) -> None:
    """Raise InputError if `query`, multiplied by the number of items, exceeds the body limit `max_bytes`.

    The query is sent again with every few items. A file counts with 1/FILE_BYTES_A_CHARACTER of its bytes.
    """
    size = len(query) if isinstance(query, str) else len(query) // FILE_BYTES_A_CHARACTER
    if size * len(items) > max_bytes:
        raise InputError.at(
            name,
            f"{len(query)} {'characters' if isinstance(query, str) else 'bytes'} for each of {len(items)} "
            "items exceed SIE_DOOR_MAX_BODY_BYTES; send a shorter query, or fewer items",
        )


def checked_model(name: str) -> str:
    if len(name) > LONGEST_MODEL:
        raise InputError.at("model", f"has {len(name)} characters; at most {LONGEST_MODEL} are allowed")
    return name


def checked_options(options: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the request parameters; InputError if they are too many or too long. The model checks their values."""
    if len(options) > MAX_OPTIONS:
        raise InputError.at("body", f"has {len(options)} request parameters; send at most {MAX_OPTIONS}")
    for name in options:
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise InputError.at("body", f"{shown(name)} is not a request parameter")
    sizes = {name: len(value) for name, value in options.items() if isinstance(value, (str, bytes))}
    if sum(sizes.values()) > LONGEST_OPTIONS:
        name = max(sizes, key=sizes.__getitem__)
        raise InputError.at(
            name, f"has {sizes[name]} characters; send at most {LONGEST_OPTIONS} in all parameters together"
        )
    return dict(options)


def whole(value: Any) -> int | None:
    """Return the value of a JSON integer, which may have a fraction of zero; None for anything else.

    >>> whole(8), whole(8.0), whole(8.5), whole(True), whole("8")
    (8, 8, None, None, None)
    """
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def kind_of(value: Any) -> str:
    """Return what JSON calls the type of `value`.

    >>> kind_of({}), kind_of(True), kind_of(1.5), kind_of(None)
    ('an object', 'a boolean', 'a number', 'null')
    """
    names = {dict: "an object", list: "a list", bool: "a boolean", str: "a string", type(None): "null"}
    return names.get(type(value), "a number")
