"""Limits on requests in progress, of the server and of a model: in preprocess, in Triton's queue, and in inference.

Triton's own queue limit makes its batcher stall, so the stages do the counting. Preprocess gives each request that it
passes on an ascending ticket; inference records the highest ticket that it has received. Triton's queue is first in,
first out, so the difference is the number of queued requests, and a request that was lost on the way is forgotten as
soon as a later one arrives.
"""

from time import monotonic_ns

from sie_triton.errors import BusyError
from sie_triton.records.limits import RecordLimits
from sie_triton.records.other_models import OtherModels
from sie_triton.records.status import StatusReader, StatusWriter


class RequestLimit:
    """The limits on requests as the preprocess of a model sees them, from the status records.

    `of_server` limits all models together, `of_model` this one; 0: no limit of its own. Holds the highest ticket that
    inference has received, and since when. The thread in `execute` calls the public methods, which raise nothing.
    """

    def __init__(
        self,
        of_server: int,
        of_model: int,
        preprocess: StatusWriter,
        inference: StatusReader,
        others: OtherModels,
        limits: RecordLimits = RecordLimits(),
    ) -> None:
        self._limits = limits
        self._of_server, self._of_model = of_server, of_model or of_server
        self._own = preprocess.record
        self._inference = inference
        self._others = others
        self._is_of_model = False  # the limit that was reached
        self._taken = self._queued = 0
        self._taken_ns = monotonic_ns()

    def places_left(self) -> int:
        """Return how many more requests may enter now."""
        left = self._places_left(self._limits.listing_ns)
        if left <= 0:
            left = self._places_left(self._limits.fresh_listing_ns)
        if left <= 0 and monotonic_ns() - self._taken_ns > self._limits.stuck_ns and self._queued:
            self._taken_ns = monotonic_ns()
            return 1
        return left

    def refusal(self) -> BusyError:
        """Return the error of the requests beyond `places_left`: it names the limit that they exceed."""
        return too_many(self._of_model) if self._is_of_model else too_many_of_server(self._of_server)

    def _places_left(self, max_age_ns: int) -> int:
        own = self._in_progress(max_age_ns)
        left_of_model, left_of_server = self._of_model - own, self._of_server - own - self._others.in_progress()
        self._is_of_model = left_of_model < left_of_server
        return min(left_of_model, left_of_server)

    def _in_progress(self, max_age_ns: int) -> int:
        records = self._inference.records(max_age_ns)
        taken = max([int(record["highest_ticket"]) for record in records], default=0)
        if taken != self._taken:
            self._taken, self._taken_ns = taken, monotonic_ns()
        self._queued = max(0, int(self._own["highest_ticket"]) - taken)
        return int(self._own["num_open"]) + self._queued + sum([int(record["num_open"]) for record in records])


def too_many(limit: int) -> BusyError:
    return BusyError(
        f"{limit} requests of this model are in progress, the most that SIE_MAX_REQUESTS_PER_MODEL allows; "
        "retry in a second",
        retry_after_s=1,
    )


def too_many_of_server(limit: int) -> BusyError:
    return BusyError(
        f"{limit} requests are in progress on this server, the most that SIE_MAX_CONCURRENT_REQUESTS allows; "
        "retry in a second",
        retry_after_s=1,
    )
