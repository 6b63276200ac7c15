"""Metrics of a gateway, for scaling rules and dashboards; doors/counts.py adds up those of its processes."""

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

Labels = tuple[str, ...]


class Values:
    """A gauge for each of a changing set of labels: those that are no longer given become 0."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: set[Labels] = set()

    def show(self, values: Mapping[Labels, float]) -> None:
        for labels in self._shown - values.keys():
            self._gauge.labels(*labels).set(0)
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        self._shown |= values.keys()


def _gauge(name: str, text: str, labels: list[str], mode: str = "livemax") -> Values:
    return Values(Gauge(f"sie_gateway_{name}", text, labels, registry=None, multiprocess_mode=mode))  # type: ignore[arg-type]


# What all gateways see alike is the largest value of their processes.
DEPTH = _gauge("worker_queue_depth", "Requests of a pool in the queue, those at workers included.", ["pool"])
FILL = _gauge("queue_fill_ratio", "Messages or bytes of a pool's queue, by their limit.", ["pool"])
DEMAND = _gauge(
    "pending_demand", "1 if a pool or a kind of machine was asked for lately, and has no worker.", ["pool", "profile"]
)
LEASED = _gauge("active_lease_gpus", "Workers of a pool that leases ask for.", ["pool", "profile"])
READY = _gauge("ready_workers", "Workers of a pool that are ready.", ["pool"])

WAITING = _gauge("waiting_requests", "Requests that wait at gateways for a place in the queue.", ["pool"], "livesum")

REJECTED = Counter(
    "sie_gateway_rejected_requests",
    "Requests that were refused because too many wait, or the queue is full or too slow.",
    ["pool"],
    registry=None,
)

UNSTORED = Counter(
    "sie_gateway_unstored_requests",
    "Attempts to store a request that the queue did not confirm, for another reason than that it is full.",
    ["pool"],
    registry=None,
)
