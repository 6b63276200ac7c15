"""Stand-in for a queue on NATS, and the runner of a sidecar that works for it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sie_triton.cluster.messages import Answer
from sie_triton.cluster.policies.quantum import Quantum
from sie_triton.cluster.sidecar.receipts import Receipts
from sie_triton.cluster.sidecar.runner import Runner
from sie_triton.records.calls import CallBook


class Queue:
    """Keeps what is published, as subjects with their data."""

    max_payload = 1 << 20

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    async def publish(self, subject: str, data: bytes = b"", **_: object) -> None:
        self.published.append((subject, data))

    def of(self, beginning: bytes) -> list[bytes]:
        """Return what was published that begins so."""
        return [data for _, data in self.published if data.startswith(beginning)]

    @property
    def answers(self) -> list[Answer]:
        return [Answer.read(data)[0] for subject, data in self.published if subject.startswith("sie.answer")]


def runner_of(
    queue: Queue, triton: Any, directory: Path, *, max_calls: int = 1, max_requests: int = 8, **more: Any
) -> Runner:
    """Return the runner of a sidecar before a stand-in for Triton."""
    parts = {"calls": CallBook(directory), "receipts": Receipts(directory), "payloads": None, **more}
    limits = {"quantum": Quantum(50.0), "coalesce_ms": 0.0, "max_calls": max_calls, "max_requests": max_requests}
    return Runner(queue, queue, triton, worker="w", **limits, **parts)  # type: ignore[arg-type]


def delivered(data: bytes, num_deliveries: int = 1, number: int = 1) -> Any:
    """Return a message with a work, as the queue delivers it."""
    return SimpleNamespace(data=data, reply=f"$JS.ACK.s.c.{num_deliveries}.{number}.1.1.0")
