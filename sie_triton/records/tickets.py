"""Limit on the requests of a model in progress: in preprocess, in Triton's queue, and in inference.

Triton's own queue limit makes its batcher stall, so the stages do the counting. Preprocess gives each request that it
passes on an ascending ticket; inference records the highest ticket that it has received. Triton's queue is first in,
first out, so the difference is the number of queued requests, and a request that was lost on the way is forgotten as
soon as a later one arrives.
"""

from time import monotonic_ns

from sie_triton.errors import BusyError
from sie_triton.records.status import StatusReader, StatusWriter

LISTING_NS = 500_000_000
FRESH_LISTING_NS = 20_000_000

# If inference has received nothing for this long, one request is let through: all queued ones may have been lost.
STUCK_NS = 1_000_000_000


class RequestLimit:
    """The limit on a model's requests as preprocess sees it, from its own record and those of inference.

    Holds the highest ticket that inference has received, and since when. The thread in `execute` calls `room`, which
    raises nothing; the stage refuses requests with `too_many`.
    """

    def __init__(self, limit: int, preprocess: StatusWriter, inference: StatusReader) -> None:
        self._limit = limit
        self._own = preprocess.record
        self._inference = inference
        self._taken = 0
        self._taken_ns = monotonic_ns()

    def room(self) -> int:
        """Return how many more requests may enter now."""
        room = self._limit - self._in_progress(LISTING_NS)
        if room <= 0:
            room = self._limit - self._in_progress(FRESH_LISTING_NS)
        if room <= 0 and monotonic_ns() - self._taken_ns > STUCK_NS:
            self._taken_ns = monotonic_ns()
            return 1
        return room

    def _in_progress(self, max_age_ns: int) -> int:
        records = self._inference.records(max_age_ns)
        taken = max((int(r["highest_ticket"]) for r in records), default=0)
        if taken != self._taken:
            self._taken, self._taken_ns = taken, monotonic_ns()
        queued = max(0, int(self._own["highest_ticket"]) - taken)
        return int(self._own["num_open"]) + queued + sum(int(r["num_open"]) for r in records)


def too_many(limit: int) -> BusyError:
    return BusyError(
        f"{limit} requests of this model are in progress, the most that SIE_MAX_CONCURRENT_REQUESTS allows; "
        "retry in a second",
        retry_after_s=1,
    )
