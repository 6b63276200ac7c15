"""Check that a model's weights are available from the hub, without downloading them."""

from collections.abc import Sequence

from sie_triton.errors import LoadError
from sie_triton.models.weights import hub
from sie_triton.models.weights.limits import LIMITS

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.onnx")


class Hub:
    """The hub, and the cache `cluster` before it.

    Asked about at most `max_hub_questions` repositories, and about no further one once the hub is unreachable.

    Holds the number of questions, and the error of an unreachable hub. For one thread.
    """

    def __init__(self, *, allowed: bool, cluster: str = "") -> None:
        self._cluster = cluster
        self._allowed = allowed
        self._num_queried = 0
        self._unreachable: LoadError | None = None

    def check(self, reference: str, patterns: Sequence[str] = WEIGHTS) -> None:
        """Raise LoadError if no file of `org/name[@revision]` in `patterns` is cached, and the hub lacks it."""
        try:
            if hub.snapshot(reference, allow_hub=False).matching(patterns):
                return
        except LoadError:
            if not self._allowed and not self._cluster:
                raise
        if self._unreachable:
            raise self._unreachable
        if self._num_queried < LIMITS.max_hub_questions:
            self._num_queried += 1
            self._ask(reference)

    def _ask(self, reference: str) -> None:
        try:
            failure = hub.snapshot(reference, allow_hub=self._allowed, cluster=self._cluster).unknown
        except LoadError as exc:
            failure = exc
        if failure and failure.reason == "network":
            self._unreachable = failure
        if failure:
            raise failure
