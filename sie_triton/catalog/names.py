"""What a model may be called, and which names cannot stand side by side."""

import re
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from sie_triton.contract import TASKS

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
SUFFIXES = ("-preprocess", "-inference", "-postprocess", *(f"-{task}" for task in TASKS))


def check_name(name: str) -> str:
    """Part of URLs, files and directories; the names of a model's steps and further tasks are its own with a suffix."""
    if not NAME.fullmatch(name):
        raise ValueError("must be name or org/name, of letters a to z, digits, _, . and -, with no . or - first")
    if name.endswith(SUFFIXES):
        raise ValueError(f"must not end in {', '.join(SUFFIXES)}; they name parts of a model")
    return name


ModelName = Annotated[str, StringConstraints(max_length=200), AfterValidator(check_name)]


def triton_name(model: str) -> str:
    """Triton's name of a model; Triton forbids the slash.

    >>> triton_name("BAAI/bge-m3")
    'BAAI__bge-m3'
    """
    return model.replace("/", "__")


def place_of(model: str) -> str:
    """Equal for names that cannot stand side by side, also where a file system knows no capitals.

    >>> place_of("A/x") == place_of("a/x") == place_of("a__x")
    True
    """
    return triton_name(model).lower()
