"""Rules for model names, and which names conflict."""

import re
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from sie_triton.contract import TASKS
from sie_triton.contract.names import triton_name

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
SUFFIXES = ("-preprocess", "-inference", "-postprocess", *(f"-{task}" for task in TASKS))


def check_name(name: str) -> str:
    """Return `name`; ValueError if a model cannot have it.

    Names become parts of URLs and paths. The suffixes are reserved for a model's steps and tasks.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            "must be name or org/name; each part consists of the letters a to z, digits, _, . and -, "
            "and must not begin with . or -"
        )
    if name.endswith(SUFFIXES):
        raise ValueError(f"must not end in {', '.join(SUFFIXES)}, which are reserved for the parts of a model")
    return name


ModelName = Annotated[str, StringConstraints(max_length=200), AfterValidator(check_name)]


def conflict_key(model: str) -> str:
    """Return a key that is equal for conflicting names, also on a case-insensitive file system.

    >>> conflict_key("A/x") == conflict_key("a/x") == conflict_key("a__x")
    True
    """
    return triton_name(model).lower()
