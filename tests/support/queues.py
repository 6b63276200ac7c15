"""Stand-in for a queue on NATS."""


class Queue:
    """Keeps what is published, as subjects with their data."""

    max_payload = 1 << 20

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    async def publish(self, subject: str, data: bytes = b"", **_: object) -> None:
        self.published.append((subject, data))
