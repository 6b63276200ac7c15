"""One LoRA adapter of a model: what it is, who uses it, and who waits for it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns

from sie_triton.errors import LoadError
from sie_triton.records.loras import LOADING, Lora, State
from sie_triton.stages.work import Work


@dataclass(slots=True, eq=False)
class HeldLora:
    """`users` are jobs that were let through to the scheduler, as far as they are not answered, `waiting` those that
    were not. While it is `leaving` nobody is let through any more.
    """

    name: str
    source: str
    state: State = LOADING
    directory: Path = Path()
    num_bytes: int = 0
    last_used_ns: int = field(default_factory=monotonic_ns)
    failure: LoadError | None = None
    retry_at: float = 0.0
    leaving: bool = False
    num_running: int = 0
    waiting: list[Work] = field(default_factory=list)
    users: set[Work] = field(default_factory=set)

    def as_record(self) -> Lora:
        return Lora(
            name=self.name,
            state=self.state,
            failure=str(self.failure or ""),
            bytes=self.num_bytes,
            last_used_ns=self.last_used_ns,
        )

    def is_used(self, is_wanted: Callable[[Work], bool]) -> bool:
        """By a pass, or by a job whose answer `is_wanted`; the others are forgotten."""
        self.users = set(filter(is_wanted, self.users))
        return bool(self.users or self.num_running)
