"""Bodies of other HTTP dialects as pydantic models, and checks of fields before any work begins."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, LiteralString, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sie_triton.contract import CHUNK_OVERLAP, CHUNK_TOKENS, LATE_CHUNKING
from sie_triton.contract.parameters import LONGEST_NAME, shown
from sie_triton.doors.endpoint import DoorRequest
from sie_triton.doors.failures import Failure
from sie_triton.doors.places import OVERFLOW, Policy
from sie_triton.errors import InputError
from sie_triton.settings.validation import requirement

# Parameters that choose the form of a response. Only SIE's own routes take them: other dialects have one form.
OURS = ("output_types", "output_dtype", CHUNK_TOKENS.name, CHUNK_OVERLAP.name, LATE_CHUNKING.name)

# Maximum length of a model's name with its profile, in characters.
LONGEST_MODEL = 512

# Maximum number of request parameters, and of characters in all of them: every request to Triton that is made from a
# body carries them.
MAX_OPTIONS = 64
LONGEST_OPTIONS = 250_000

LARGEST_COUNT = 2**31 - 1

# Bytes of a query file that count as one character of a query text.
FILE_BYTES_A_CHARACTER = 16

# What a value must be, by the type of pydantic's error, where clients of HTTP need other words than files of settings.
WORDS = {
    "extra_forbidden": "is not read here",
    "model_type": "must be an object",
    "string_type": "must be a string",
    "too_short": "is empty; give at least one",
    "none_required": "is not supported",
}

# Type and words of the error for a list of more than SIE_DOOR_MAX_ITEMS.
TOO_MANY: LiteralString = "too_many"
TOO_MANY_WORDS: LiteralString = "has {number} entries; SIE_DOOR_MAX_ITEMS allows {most} per request"

# Types of errors whose words leave nothing to say about the value.
COMPLETE = ("extra_forbidden", "missing", "too_long", "too_short", "value_error", TOO_MANY)

# Stands in schemas for SIE_DOOR_MAX_ITEMS, which validation reads from its context.
MAX_ITEMS = 0


class Body(BaseModel):
    """Body of a request, checked without conversions. Undeclared fields are request parameters.

    /openapi.json describes the fields by the same declarations. A field's description is a part of its errors. `fixed`
    are request parameters that the route itself sets, `remedy` is what an error for a text that is too long advises.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    fixed: ClassVar[Mapping[str, Any]] = {}
    remedy: ClassVar[str] = "shorten it"

    @classmethod
    def of(cls, request: DoorRequest) -> Self:
        return cls.read(request.content, request.door.settings.door_max_items)

    @classmethod
    def read(cls, content: Any, max_items: int) -> Self:
        """Return the body in a JSON value, where null counts as absent; InputError names the first invalid field."""
        if not isinstance(content, dict):
            raise InputError.at("body", f"must be a JSON object; got {shown_json(content)}")
        try:
            return cls.model_validate(content, context=max_items)
        except ValidationError as exc:
            raise cls._first(exc) from None

    @model_validator(mode="before")
    @classmethod
    def _given(cls, content: Any) -> Any:
        """Return the fields that are not null; InputError if they are too many: pydantic is slow with many."""
        if not isinstance(content, dict):
            return content
        given = {name: value for name, value in content.items() if value is not None}
        _check_number(len(given) - len(given.keys() & cls.model_fields.keys()))
        return given

    @classmethod
    def _first(cls, invalid: ValidationError) -> InputError:
        error = invalid.errors(include_url=False)[0]
        name, *inner = error["loc"]
        place = "".join([str(name), *(f"[{i}]" if isinstance(i, int) else f".{i[:LONGEST_NAME]}" for i in inner)])
        field = None if inner or error["type"] == TOO_MANY else cls.model_fields.get(str(name))
        meaning = field.description if field else None
        problem = (WORDS.get(error["type"]) or requirement(error)) + (f" ({meaning})" if meaning else "")
        got = "" if error["type"] in COMPLETE else f"; got {shown_json(error['input'])}"
        return InputError.at(place, problem + got)

    def options(self) -> dict[str, Any]:
        """Return the request parameters: undeclared fields, those that declared ones stand for, and `fixed`."""
        others = self.model_extra or {}
        for name in self.hidden() & others.keys():
            raise InputError.at(name, "cannot be set here; use SIE's routes")
        named = {name: value for name, value in self.translated().items() if value is not None}
        for name, value in named.items():
            given = others.get(name, value)
            if given != value or isinstance(given, bool) != isinstance(value, bool):  # 0 is not False
                raise InputError.at(name, f"contradicts another field, which makes it {shown(value)}; send one of them")
        return checked_options({**others, **named, **self.fixed})

    def translated(self) -> dict[str, Any]:
        """Return the request parameters that declared fields stand for; None: unset."""
        return {}

    @classmethod
    def hidden(cls) -> set[str]:
        """Return the names of the models' parameters that a body cannot set."""
        return {*OURS, *cls.fixed}

    @property
    def refuses_long(self) -> bool:
        """True if a text beyond the model's maximum length is an error; else it is truncated."""
        return False

    def check_lengths(self, results: Sequence[Mapping[str, Any]], field: str) -> None:
        """Raise Failure for the first truncated item if the request refuses long texts."""
        if self.refuses_long:
            check_lengths(results, field, self.remedy)


def _counted(value: Any, info: ValidationInfo) -> Any:
    most = int(info.context or 0)
    if isinstance(value, list) and len(value) > most:
        raise PydanticCustomError(TOO_MANY, TOO_MANY_WORDS, {"number": len(value), "most": most})
    return value


def _integral(value: Any) -> Any:
    number = whole(value)
    return value if number is None or abs(number) > LARGEST_COUNT else number


def allowing(is_allowed: Callable[[Any], bool], problem: str) -> AfterValidator:
    """Return a check of a field's value; `problem` is the error message for a value that is not allowed."""

    def check(value: Any) -> Any:
        if not is_allowed(value):
            raise ValueError(problem)
        return value

    return AfterValidator(check)


Item = TypeVar("Item")

# Of a list of at least one entry, and at most SIE_DOOR_MAX_ITEMS.
ITEMS = Field(min_length=1, fail_fast=True, json_schema_extra={"maxItems": MAX_ITEMS})
Items = Annotated[list[Item], ITEMS, BeforeValidator(_counted)]
Texts = Annotated[
    Items[str],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | Items[str]
    ),
    Field(description="a string or a list of strings"),
]
INTEGRAL = BeforeValidator(_integral)
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT), INTEGRAL]
ModelName = Annotated[str, Field(max_length=LONGEST_MODEL, description="org/name, or org/name:profile")]
NESTED = Field(strict=False)  # of an object in a body: strictly, pydantic would want an instance of its class
Ignored = Annotated[Any, Field(description="ignored")]
Truncation = Annotated[int, Field(ge=-1, le=-1), INTEGRAL]
AT_MOST = "-1: truncate a text beyond the model's maximum length"


class Overflowing(Body):
    """Body with SIE's and vLLM's fields for texts beyond the model's maximum length, which are truncated by default."""

    overflow_policy: Policy | None = Field(None, description="error: do not truncate a text that is too long")
    truncate_prompt_tokens: Truncation | None = Field(None, description=AT_MOST)

    remedy: ClassVar[str] = f"shorten it, or omit {OVERFLOW} to truncate it"

    @property
    def refuses_long(self) -> bool:
        return self.overflow_policy == "error"

    @model_validator(mode="after")
    def _agreeing(self) -> Self:
        if self.refuses_long and self.truncate_prompt_tokens is not None:
            raise InputError.at("truncate_prompt_tokens", f"contradicts {OVERFLOW} error; send one of them")
        return self


def check_lengths(results: Sequence[Mapping[str, Any]], field: str, remedy: str) -> None:
    """Raise Failure for the first item that the model has truncated."""
    for i, result in enumerate(results):
        if result.get("truncated"):
            name = f"{field}[{i}]"
            raise Failure("too_long", f"{name}: is longer than the model's maximum length; {remedy}", field=name)


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
    _check_number(len(options))
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


def _check_number(num_options: int) -> None:
    if num_options > MAX_OPTIONS:
        raise InputError.at("body", f"has {num_options} request parameters; send at most {MAX_OPTIONS}")


def whole(value: Any) -> int | None:
    """Return the value of a JSON integer, which may have a fraction of zero; None for anything else.

    >>> whole(8), whole(8.0), whole(8.5), whole(True), whole("8")
    (8, 8, None, None, None)
    """
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def shown_json(value: Any) -> str:
    """Return a value as `shown` does, or JSON's name of its type.

    >>> shown_json({}), shown_json(None), shown_json(1.5)
    ('an object', 'null', '1.5')
    """
    return {dict: "an object", list: "a list", type(None): "null"}.get(type(value)) or shown(value)
