"""Metrics of a sidecar, on its own port."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

WORK = Counter("sie_sidecar_work", "Requests from the queue, by what became of them.", ["outcome"], registry=REGISTRY)
for outcome in ("answered", "failed", "returned", "dropped", "withdrawn", "repeated", "dead"):
    WORK.labels(outcome)  # a rate needs the 0 before the first request
WAIT = Histogram(
    "sie_sidecar_triton_wait_seconds",
    "Time that a request waited in Triton's queues and before its call.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
    registry=REGISTRY,
)
JOINED = Histogram(
    "sie_sidecar_joined_requests",
    "Requests of one call of Triton, of those that had to wait for another call.",
    buckets=(1, 2, 4, 8, 16, 32, 64),
    registry=REGISTRY,
)
OPEN = Gauge("sie_sidecar_open", "Requests at Triton.", registry=REGISTRY)
LIMIT = Gauge("sie_sidecar_open_limit", "Requests that may be at Triton.", registry=REGISTRY)
CLAIMS = Gauge("sie_sidecar_claimed_models", "Models whose work this sidecar fetches.", registry=REGISTRY)
EPOCH = Gauge("sie_sidecar_config_epoch", "Epoch of the model files that this server has.", registry=REGISTRY)
