"""What is fuzzed: cases, the function that reads them, and what it may raise."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

# Memory that a target may take beside what it has at its first case, in bytes.
MEMORY_BYTES = 1_500_000_000


@dataclass(frozen=True)
class Target:
    """A reader of something from outside.

    `run` takes one of `cases`, which can be pickled. It returns, or raises one of `refusals`: errors that blame the
    input. Anything else is a finding.
    """

    cases: SearchStrategy[Any]
    run: Callable[[Any], object]
    refusals: tuple[type[Exception], ...] = ()
    memory_bytes: int = MEMORY_BYTES


# Function that prepares a target in a directory of its own, and releases what it holds at the end.
Prepare = Callable[[Path], AbstractContextManager[Target]]
Prepared = Iterator[Target]


def target_named(reference: str) -> Prepare:
    """Return the function `module:function`."""
    module, _, name = reference.partition(":")
    found: Prepare = getattr(import_module(module), name)
    return found


def check_line(error: Exception, most: int, start: str = "") -> None:
    """Assert that an error is one line of at most so many characters, and begins with `start`."""
    text = str(error)
    assert 0 < len(text) <= most, text
    assert text.isprintable(), text
    assert text.startswith(start), text
