"""Findings: inputs that a reader neither takes nor refuses."""

import pickle
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

PACKAGE = "sie_triton"

# Characters of an input, and of the texts of a crash, that a report shows.
MAX_SHOWN, MAX_TEXT = 2000, 6000


class Escaped(Exception):
    """Stands for what is no Exception, such as the panic of a native library."""


@dataclass(frozen=True)
class Finding:
    """An input, pickled, and what it does. `place` tells findings apart: the exception and where it was raised."""

    place: str
    text: str
    case: bytes

    @property
    def shown(self) -> str:
        """The input in Python's words, cut."""
        try:
            text = repr(pickle.loads(self.case))
        except Exception as exc:  # it was too large to be kept
            return f"{len(self.case)} bytes ({exc})"
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"


def finding_of(error: BaseException, case: Any) -> Finding:
    return Finding(place_of(error), "".join(traceback.format_exception(error)), pickle.dumps(case))


def place_of(error: BaseException) -> str:
    """Return the type of an exception and the line of the package that raised it, or else the last line.

    >>> try: int("x")
    ... except ValueError as exc: place_of(exc).partition(":")[0]
    'ValueError in <doctest tests.fuzz.finding.place_of[0]>'
    """
    lines = list(_lines(error.__traceback__))
    own = [line for line in lines if f"/{PACKAGE}/" in line]
    kind = str(error).partition(":")[0] if isinstance(error, Escaped) else type(error).__name__
    return f"{kind} in {(own or lines or ['?'])[-1]}"


def _lines(trace: TracebackType | None) -> Any:
    for frame, number in traceback.walk_tb(trace):
        path = Path(frame.f_code.co_filename)
        name = str(path)
        yield f"{name[name.find(f'/{PACKAGE}/') :] if f'/{PACKAGE}/' in name else path.name}:{number}"
