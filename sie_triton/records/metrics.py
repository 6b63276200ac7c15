"""Counters of the status record on Triton's metrics port.

An increment is a round trip to Triton (0.1 ms), so counters are updated at intervals, not with each request.
"""

from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Any

import numpy as np

from sie_triton.records.limits import RecordLimits

# Field of the status record → name and description of the metric.
OF_REQUESTS = {
    "num_refused": ("sie_requests_refused_total", "requests refused because too many were in progress"),
    "num_expired": ("sie_requests_expired_total", "requests whose timeout passed before they were answered"),
    "num_faults": ("sie_faults_total", "errors outside the handling of a request, and responses that Triton rejected"),
}

# The metrics of each stage.
COUNTERS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "preprocess": {
        "num_requests": ("sie_requests_accepted_total", "requests accepted"),
        **OF_REQUESTS,
    },
    "inference": {
        **OF_REQUESTS,
        "num_cancelled": (
            "sie_requests_cancelled_total",
            "requests abandoned because their client had cancelled or disconnected",
        ),
        "num_replaced": ("sie_workers_replaced_total", "worker processes that died and were replaced"),
        "num_deferred": ("sie_requests_deferred_total", "requests answered after execute had returned"),
        "num_items": ("sie_items_computed_total", "items that went through a forward pass"),
        "num_sub_batches": ("sie_sub_batches_total", "forward passes"),
        "total_cost": ("sie_cost_computed_total", "cost of the computed items, in tokens for text"),
    },
}


class MetricsPublisher:
    """Copies the counters of one process from its status record to Triton's metrics port.

    `counter(name, doc, labels)` makes a counter with a method `increment`, on the thread that makes the publisher.
    Afterwards only the publisher's own thread uses the counters. An exception of a counter ends that thread, and the
    metrics no longer change. `close` publishes once more.
    """

    def __init__(
        self,
        record: np.void,
        model: str,
        stage: str,
        counter: Callable[[str, str, Mapping[str, str]], Any],
        limits: RecordLimits = RecordLimits(),
    ) -> None:
        self._record, self._limits = record, limits
        labels = {"model": model, "stage": stage}
        self._counters = {field: counter(name, doc, labels) for field, (name, doc) in COUNTERS.get(stage, {}).items()}
        self._published = dict.fromkeys(self._counters, 0)
        self._closing = Event()
        self._thread = Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def publish(self) -> bool:
        """Raise every counter to the value of its field; True if one has changed."""
        before = {**self._published}
        for field, counter in self._counters.items():
            value = int(self._record[field])
            if value > self._published[field]:
                counter.increment(value - self._published[field])
                self._published[field] = value
        return self._published != before

    def _run(self) -> None:
        limits = self._limits
        pause_s = limits.publish_s
        while not self._closing.wait(pause_s):
            pause_s = limits.publish_s if self.publish() else min(2 * pause_s, limits.longest_publish_s)
        self.publish()
