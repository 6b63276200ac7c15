"""The server's budget of CPU threads: models that compute or load share it evenly; idle models take no share."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic_ns

from sie_triton.system.host.container import num_processors

# How long after its last forward pass a model counts as in use, and the interval of counting.
IN_USE_NS = 2_000_000_000
REFRESH_NS = 500_000_000

Records = Callable[[], Sequence[Mapping[str, int]]]


class CpuBudget:
    """The CPU threads of the whole server, and the current share of one model.

    `total` 0 means all processors that this process may use; `records` returns the status records of the other models.
    Lanes and the thread in `execute` call `threads` without a lock: two that count at once get the same share. While
    `records` raises OSError, for example because no file handle is left, the share stays as it is.
    """

    def __init__(self, total: int, records: Records) -> None:
        self.total = total or num_processors()
        self._records = records
        self._share = self.total
        self._counted_ns = 0

    def threads(self) -> int:
        """Return how many threads this model may use now, at least 1."""
        now = monotonic_ns()
        if now - self._counted_ns >= REFRESH_NS:
            with suppress(OSError):
                others = sum(1 for record in self._records() if _is_in_use(record, now))
                self._share = max(1, self.total // (1 + others))
            self._counted_ns = now
        return self._share


def _is_in_use(record: Mapping[str, int], now: int) -> bool:
    """True if the model computes, has computed lately, or loads: calibration takes threads as a forward pass does."""
    is_loading = bool(record["granted_bytes"])
    return is_loading or bool(record["busy_since_ns"]) or now - record["last_used_ns"] < IN_USE_NS
