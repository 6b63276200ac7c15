"""A LoRA adapter of a model: its state, the jobs that use it, and the jobs that wait for it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns

from sie_triton.errors import LoadError
from sie_triton.models.weights.uses import Uses
from sie_triton.pipeline.stages.inference_job import InferenceJob
from sie_triton.records.lora_states import LOADING, Lora, State


@dataclass(slots=True, eq=False)
class CachedLora:
    """A LoRA adapter and its jobs.

    `users`: unanswered jobs that were passed to the scheduler; `waiting`: jobs that were not. While the adapter is
    `leaving`, no further job is passed on. `uses` keeps its files on the disk, for the worker after this one.
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
    waiting: list[InferenceJob] = field(default_factory=list)
    users: set[InferenceJob] = field(default_factory=set)
    uses: Uses = field(default_factory=Uses)

    def as_record(self) -> Lora:
        return Lora(
            name=self.name,
            state=self.state,
            failure=str(self.failure or ""),
            bytes=self.num_bytes,
            last_used_ns=self.last_used_ns,
        )

    def is_used(self, is_wanted: Callable[[InferenceJob], bool]) -> bool:
        """True if a forward pass runs with it, or a job whose response `is_wanted` uses it. Other jobs are dropped."""
        self.users = set(filter(is_wanted, self.users))
        return bool(self.users or self.num_running)
