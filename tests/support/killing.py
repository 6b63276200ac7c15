"""Clients of a cluster on this machine that compare every answer, while parts of it are killed."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import psutil
import tritonclient.grpc as triton

# Words in the command line of each part.
PARTS = {
    "nats": "nats-server",
    "gateway": "sie_triton.cluster.gateway",
    "config": "sie_triton.cluster.config",
    "sidecar": "sie_triton.cluster.sidecar",
    "triton": "bin/tritonserver",
    "launcher": "sie_triton.cli serve",
    "controller": "sie_triton.cli controller",
}

# Pause of a client between two requests, in seconds: some of the processors is left for parts that start again.
PAUSE_S = 0.15

TEXTS = [f"text number {i} " + "word " * (2 * i) for i in range(10)]


def part(name: str, root: psutil.Process) -> list[psutil.Process]:
    """Return the processes of a part among the descendants of `root`."""
    found = []
    for process in root.children(recursive=True):
        try:
            if PARTS[name] in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: process.pid)


class Clients:
    """Threads that ask one of several gateways for vectors, and compare them with the first ones of this process.

    A client whose gateway has gone asks the next one. Use as a context manager.
    """

    def __init__(self, addresses: Sequence[str], models: Sequence[str], num_clients: int = 8) -> None:
        self._addresses, self._models = addresses, models
        self.num_right, self.wrong = 0, []
        self.failures: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._is_over = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(num_clients)]

    def __enter__(self) -> "Clients":
        self._expected = {model: first_vectors(self._addresses[0], model) for model in self._models}
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def more(self, number: int, seconds: float = 120) -> None:
        """Return once so many more answers have come."""
        wanted, deadline = self.num_right + number, time.monotonic() + seconds
        while self.num_right < wanted:
            assert time.monotonic() < deadline, self.failures
            time.sleep(0.02)

    def _ask(self, number: int) -> None:
        place, rng = number % len(self._addresses), np.random.default_rng(number)
        client = triton.InferenceServerClient(self._addresses[place])
        while not self._is_over:
            model, text = rng.choice(self._models), TEXTS[rng.integers(len(TEXTS))]
            began = time.monotonic()
            try:
                found = vector(client, model, text, 60)
            except Exception as exc:
                with self._lock:
                    self.failures[str(exc)[:120]] += 1
                time.sleep(0.05)
                place = (place + 1) % len(self._addresses)
                client = triton.InferenceServerClient(self._addresses[place])
                continue
            with self._lock:
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                if np.allclose(found, self._expected[model][text], atol=1e-5):
                    self.num_right += 1
                else:
                    self.wrong.append((model, text))
            time.sleep(PAUSE_S)


@cache
def first_vectors(address: str, model: str) -> dict[str, np.ndarray]:
    """Return the vectors of TEXTS as the model gives them at first."""
    with triton.InferenceServerClient(address) as client:
        return {text: vector(client, model, text, 120) for text in TEXTS}


def vector(client: triton.InferenceServerClient, model: str, text: str, seconds: float) -> np.ndarray:
    tensor = triton.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], object))
    return client.infer(model, [tensor], client_timeout=seconds).as_numpy("dense")


def of_the_gateway(failure: str) -> bool:
    """Return True for what a client sees whose own gateway was killed."""
    broken = ("Socket closed", "Connection reset", "failed to connect", "recvmsg", "Broken pipe")
    return any(text in failure for text in broken)
