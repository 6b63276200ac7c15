"""Describe errors of pydantic in words of the value: pydantic's own messages name its types and our classes."""

import re
from typing import Any

MAPPING, LIST, WHOLE = "must be a mapping of keys to values", "must be a list", "must be a whole number"

# What a value must be, by the type of pydantic's error, where its message does not say so in plain words.
WORDS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dataclass_type": MAPPING,
    "dict_type": MAPPING,
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_from_float": WHOLE,
    "int_parsing": WHOLE,
    "int_parsing_size": "must have fewer digits",
    "int_type": WHOLE,
    "list_type": LIST,
    "missing": "is missing",
    "model_type": MAPPING,
    "path_type": "must be a path",
    "string_type": "must be a text",
    "tuple_type": LIST,
}


def requirement(error: Any) -> str:
    """Return what a value must be, for one of the errors of a ValidationError.

    >>> requirement({"type": "less_than", "msg": "Input should be less than 8"})
    'must be less than 8'
    >>> requirement({"type": "string_too_long", "msg": "String should have at most 3 characters"})
    'must have at most 3 characters'
    >>> requirement({"type": "value_error", "msg": "Value error, must be a color"})
    'must be a color'
    """
    if error["type"] in WORDS:
        return WORDS[error["type"]]
    return re.sub(r"^\w+ should ", "must ", error["msg"].removeprefix("Value error, ").replace(" after validation", ""))
