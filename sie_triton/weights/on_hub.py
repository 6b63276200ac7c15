"""Could the weights of a model be had from the hub? Nothing is downloaded."""

from collections.abc import Sequence

from sie_triton.errors import LoadError
from sie_triton.weights import hub

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.onnx")

# A server may have hundreds of models, and a start must not take minutes.
MAX_QUESTIONS = 16


class Hub:
    """Asks about at most MAX_QUESTIONS repositories, and about no further one once the hub cannot be reached.

    Holds how often it has asked, and why the hub cannot be reached. For one thread.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._num_asked = 0
        self._unreachable: LoadError | None = None

    def check(self, reference: str, patterns: Sequence[str] = WEIGHTS) -> None:
        """LoadError where the local cache has no file of `patterns` of `org/name[@revision]`, nor the hub the model."""
        try:
            if hub.snapshot(reference, allow_hub=False).matching(patterns):
                return
        except LoadError:
            if not self._allowed:
                raise
        if self._unreachable:
            raise self._unreachable
        if self._num_asked < MAX_QUESTIONS:
            self._num_asked += 1
            self._ask(reference)

    def _ask(self, reference: str) -> None:
        try:
            failure = hub.snapshot(reference, allow_hub=self._allowed).unknown
        except LoadError as exc:
            failure = exc
        if failure and failure.reason == "network":
            self._unreachable = failure
        if failure:
            raise failure
