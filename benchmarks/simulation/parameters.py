"""The parameters of a simulation, which a JSON file can override."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sie_triton.errors import InputError

MAX_REQUESTS_OF_CALL, MAX_TEXTS_OF_CALL = 64, 512


@dataclass(frozen=True, slots=True)
class Parameters:
    """Times are in seconds (`_s`), sizes in gigabytes (`_gb`).

    Measured, all-MiniLM-L6-v2 in float32 on two CPU cores: `call_s` is the time of a call beside its forward pass (28.7
    less 20.6 ms, docs/benchmarks/minilm-cpu.md), `request_s` that of each of its requests (5.4 requests/s of 32 texts,
    docs/benchmarks/overhead-cpu.md, whose p50 and p99 give `call_sigma`), `load_s` and `first_load_s` those of a load
    and of a model's first one on a machine (docs/benchmarks/cold-cpu.md), `queue_s` what the queue adds, there and back
    (docs/decisions/cluster.md). A machine has room for about eight models, as in the measurement of affinity there.
    `server_start_s` is the start of a server of 100 models (docs/benchmarks/cold-cpu.md).

    Assumed: the spread of sizes and of loads, slow loads, tenants, the start of a machine, its price, and spot losses.
    """

    texts_of_request: int = 32
    call_s: float = 0.008
    request_s: float = 0.185
    # Standard deviation of the logarithm of a call's time.
    call_sigma: float = 0.1
    queue_s: float = 0.0042

    # Calls that run at full speed at a time: more of them share the machine's processor.
    lanes: float = 1.0

    # SIE_MAX_CONCURRENT_BATCHES, SIE_BATCHER_MAX_BATCH_REQUESTS, SIE_ADAPTIVE_TARGET_P50_MS and SIE_MIN_RESIDENCY_S.
    max_calls: int = 1
    max_requests: int = MAX_REQUESTS_OF_CALL
    target_ms: float = 50.0
    min_residency_s: float = 5.0

    memory_gb: float = 4.0
    model_gb: float = 0.5
    # Standard deviation of the logarithm of a model's size, and of the time of a load.
    size_sigma: float = 0.3
    load_sigma: float = 0.3
    load_s: float = 0.6
    first_load_s: float = 4.5
    # This share of the loads takes so many times longer.
    slow_load_ratio: float = 0.01
    slow_load_factor: float = 10.0

    machine_start_s: float = 60.0
    server_start_s: float = 19.5
    price_per_hour: float = 0.10
    # Losses of a machine per hour, in the scenario spot.
    spot_losses_per_hour: float = 6.0

    # Exponents of the distributions of requests over models and over tenants.
    zipf: float = 1.0
    num_tenants: int = 4
    # Time that a client allows, and its pause before it asks again for a pool without workers.
    deadline_s: float = 30.0
    retry_s: float = 5.0
    # Time that a client keeps asking for a pool without workers.
    patience_s: float = 300.0

    # Messages of the reference's queue that its workers may have at a time: one for each text.
    reference_max_pending: int = 1000

    def __post_init__(self) -> None:
        """Raise InputError if a value makes no sense."""
        for name in (
            "texts_of_request",
            "request_s",
            "lanes",
            "max_calls",
            "max_requests",
            "memory_gb",
            "model_gb",
            "num_tenants",
            "deadline_s",
            "retry_s",
        ):
            if not getattr(self, name) > 0:
                raise InputError.at(name, "must be above 0")
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 <= value < float("inf"):
                raise InputError.at(each.name, f"must be a number of at least 0; got {value}")
        if self.slow_load_ratio > 1:
            raise InputError.at("slow_load_ratio", "must be at most 1")

    @property
    def capacity(self) -> float:
        """Requests per second of one machine, each in a call of its own."""
        return self.lanes / (self.call_s + self.request_s)

    @property
    def joined_requests(self) -> int:
        """Largest number of requests in one call, by their number and by that of their texts."""
        return max(1, min(self.max_requests, MAX_TEXTS_OF_CALL // self.texts_of_request))

    def changed(self, values: Mapping[str, Any]) -> "Parameters":
        """Return parameters with these values in place of some; InputError names one that is unknown or no number.

        >>> Parameters().changed({"load_s": 2}).load_s
        2
        """
        known = {each.name: type(each.default) for each in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise InputError.at(name, "is no parameter; those of the simulation are " + ", ".join(known))
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or (known[name] is int and not isinstance(value, int)):
                raise InputError.at(
                    name, f"must be {'an integer' if known[name] is int else 'a number'}; got {value!r}"
                )
        return replace(self, **values)


def read_parameters(path: Path | None) -> Parameters:
    """Return the parameters of a JSON file, or the default ones; InputError if they cannot be read."""
    if path is None:
        return Parameters()
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise InputError(f"--parameters {path}: cannot be read ({exc})") from exc
    if not isinstance(values, dict):
        raise InputError(f"--parameters {path}: must be a JSON object of parameters")
    return Parameters().changed(values)
