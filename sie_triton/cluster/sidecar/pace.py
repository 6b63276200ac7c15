"""Pace of a sidecar: how many requests it takes, and which share a call of Triton, for how long.

What protects tenants from each other costs throughput, so that it is only for several tenants.
"""

from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from sie_triton.client.grpc_aio import InferResult
from sie_triton.client.results import timing_of
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Work
from sie_triton.cluster.policies.fair import Tenants
from sie_triton.cluster.policies.quantum import Quantum
from sie_triton.cluster.sidecar.metrics import WAIT
from sie_triton.cluster.sidecar.server import Response
from sie_triton.errors import SIEError
from sie_triton.settings import Settings


class Pace:
    """Belongs to the event loop of a runner. `quantum` follows the times that requests wait in Triton."""

    def __init__(self, settings: Settings, limits: SidecarLimits) -> None:
        self._limits, self._tenants = limits, Tenants()
        target_ms = settings.adaptive_target_p50_ms
        self.quantum = Quantum(target_ms, settings.adaptive_min_quantum_ms, settings.adaptive_max_quantum_ms)
        self._coalesce_ms = settings.batcher_coalesce_ms
        self._call_s = limits.max_call_targets * target_ms / 1000

    def note(self, tenant: str) -> None:
        """Note that a request of a tenant has come."""
        if self._tenants.note(tenant):
            self.quantum.begin_anew()

    @property
    def most_open(self) -> int:
        """Number of requests that may be here: beside several tenants all that gateways let into the queue.

        There, those of a tenant would be behind those of another one; here only its own wait for its calls.
        """
        return self.quantum.limit * (2 if self._tenants.are_several else 1)

    def line(self, work: Work, present: Iterable[Work]) -> Hashable:
        """Return the name of the line of requests that share calls with `work`, which is one of those `present`.

        Beside other tenants, one with few requests has a call for each: a second request that waited for the call of
        the first would then also wait for a pass of another tenant.
        """
        line = work.model, work.tenant
        if not self._tenants.are_several:
            return line
        num_present = sum((each.model, each.tenant) == line for each in present)
        return work.key if num_present <= self._limits.max_unshared else line

    def longest_call_s(self) -> float:
        return self._call_s if self._tenants.are_several else float("inf")

    def gather_s(self) -> float:
        """Return how long the first request of a call waits for others, in seconds."""
        return (self._coalesce_ms + self.quantum.gather_ms) / 1000

    def take_wait(self, response: Response, num_open: int) -> None:
        """Take the time that a request waited in Triton's queues and before its call, unless its response is large."""
        if not response.is_ok or len(response.body) > 64 * 1024:
            return
        with suppress(SIEError, DecodeError, ValueError, KeyError):
            timing: Any = timing_of(InferResult(service_pb2.ModelInferResponse.FromString(response.body)))
            wait_ms = timing["queue_ms"] + timing["batch_wait_ms"]
            # Requests of one tenant may wait for each other, and go in large calls: that has the best throughput.
            wait_ms += response.waited_s * 1000 if self._tenants.are_several else 0.0
            self.quantum.add(wait_ms, num_open >= self.quantum.limit)
            WAIT.observe(wait_ms / 1000)
