"""Probes of /healthz, sent by a process of their own: the tests' own computing must not count as the server's silence.

As a program, `probes.py PORT...` probes each port until its standard input ends, and writes what it saw as JSON.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

PAUSE_S = 0.05

# A probe without an answer within this time has failed.
PATIENCE_S = 30.0


@dataclass
class Probes:
    """Results of the probes. `failed` holds the responses that were not 200, with their ports."""

    num_answered: int = 0
    longest_by_port_s: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @property
    def longest_s(self) -> float:
        return max(self.longest_by_port_s.values(), default=0.0)

    def probe(self, port: int) -> None:
        """Ask once, over a new connection."""
        started = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/healthz")
            if (status := connection.getresponse().status) != 200:
                self.failed.append(f"{port}: {status}")
        except (OSError, http.client.HTTPException) as exc:
            self.failed.append(f"{port}: {exc!r}")
        finally:
            connection.close()
        self.num_answered += 1
        took_s = time.monotonic() - started
        self.longest_by_port_s[str(port)] = max(self.longest_by_port_s.get(str(port), 0.0), took_s)


@contextmanager
def probed(ports: Sequence[int]) -> Iterator[Probes]:
    """Probe `ports` in turn; the results are complete on exit."""
    command = [sys.executable, __file__, *map(str, ports)]
    seen = Probes()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield seen
        finally:
            told, _ = process.communicate()
    vars(seen).update(json.loads(told))


def main() -> None:
    stopped, seen = threading.Event(), Probes()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    while not stopped.is_set():
        for port in map(int, sys.argv[1:]):
            seen.probe(port)
        stopped.wait(PAUSE_S)
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
