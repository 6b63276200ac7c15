"""What is asked of the check, and what its parts hand back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# A part gives what it finds as soon as it has it: (section, a line of progress, an entry for the section's list).
Finding = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """`is_dry`: the same code at tiny sizes on the CPU. `broken` names a kernel to compute wrongly, or is empty."""

    device: str
    is_dry: bool = False
    broken: str = ""

    @property
    def precision(self) -> str:
        """Of what is timed."""
        return "float32" if self.is_dry else "bfloat16"


@dataclass(frozen=True, slots=True)
class Part:
    """Runs in a process of its own. If it `is_needed`, the check fails where there was no time for it."""

    name: str
    work: Callable[[Plan], Iterator[Finding]]
    is_needed: bool = False
