"""The options of a run, and the findings of its parts. Standard library only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]


class Finding(NamedTuple):
    """A result of a part, reported as soon as it is known: a row of `table`, and a line for the progress log.

    A row whose `passed` is False fails the check.
    """

    table: str
    line: str
    row: Row


class CannotRun(Exception):
    """Raised by a part that cannot run on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a run.

    With `is_dry`, the same code runs on the CPU at tiny sizes. `broken` names a kernel to compute wrongly, or is empty.
    `fork_server` is the directory of the fork server that starts workers.
    """

    device: str
    is_dry: bool = False
    broken: str = ""
    fork_server: Path = Path()

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def precision(self) -> str:
        """Number format of models that are only timed."""
        return "bfloat16" if self.is_gpu else "float32"


@dataclass(frozen=True, slots=True)
class CheckPart:
    """A part of the check, run in a separate process.

    `seconds` is its share of the default duration. If `is_needed`, the check fails unless the part finishes in time.
    """

    name: str
    work: Callable[[Plan], Iterator[Finding]]
    seconds: float
    is_needed: bool = False
    uses_workers: bool = False
