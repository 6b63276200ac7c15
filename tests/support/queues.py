"""Stand-in for a queue on NATS, and the runner of a sidecar that works for it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Answer
from sie_triton.cluster.sidecar.runner import Runner
from sie_triton.records.calls import CallBook
from sie_triton.settings import read_settings


class Queue:
    """Keeps what is published, as subjects with their data."""

    max_payload, is_connected = 1 << 20, True

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
    queue: Queue,
    triton: Any,
    directory: Path,
    calls: CallBook | None = None,
    limits: SidecarLimits = SidecarLimits(),
    **settings: Any,
) -> Runner:
    """Return the runner of a sidecar before a stand-in for Triton."""
    server: Any = SimpleNamespace(triton=triton, calls=calls or CallBook(directory))
    given = {"data_dir": directory, "max_concurrent_batches": 1, "batcher_max_batch_requests": 8, **settings}
    return Runner(queue, queue, server, read_settings(**given), "w", limits)  # type: ignore[arg-type]


def delivered(data: bytes, num_deliveries: int = 1, number: int = 1) -> Any:
    """Return a message with a work, as the queue delivers it."""
    return SimpleNamespace(data=data, reply=f"$JS.ACK.SIE_WORK_p.c.{num_deliveries}.{number}.1.1.0")
