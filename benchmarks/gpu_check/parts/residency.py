"""More models than memory: requests to all of them while models are evicted, and a worker is killed."""

import json
import os
import shutil
import signal
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np

from benchmarks.gpu_check.scope import Finding, Plan
from benchmarks.gpu_check.served import Address, served
from benchmarks.gpu_check.shapes import save, text_of, tokens_of
from benchmarks.gpu_check.work import Library, cosine
from sie_triton.records.status import records_of, worker_of

MODEL, NUM_MODELS, NUM_CLIENTS, NUM_REQUESTS = "BERT-base", 6, 8, 300
ALIKE = 0.999

# Room for about three of the models. On a CPU the limit counts whole processes.
LIMIT_BYTES, DRY_LIMIT_BYTES = 5_000_000_000, 1_000_000_000

# The counter of restarts of stages, and the label of those that are evictions.
SWAPS, EVICTION = "sie_swaps_total{", 'reason="evict:'


def measure(plan: Plan) -> Iterator[Finding]:
    """Send requests to NUM_MODELS models, of which about three fit, most of them to few models."""
    with tempfile.TemporaryDirectory() as scratch:
        saved, data_dir = save(MODEL, plan, Path(scratch)), Path(scratch) / "data"
        models = [shutil.copytree(saved, Path(scratch) / f"model-{number}") for number in range(NUM_MODELS)]
        expected = Library(MODEL, plan, saved, "float32").vectors([tokens_of(16)])
        limit = DRY_LIMIT_BYTES if plan.is_dry else LIMIT_BYTES
        with served(plan, models, data_dir, "--memory-limit-bytes", str(limit)) as address:
            ask = partial(asked, address, [each.name for each in models], expected)
            with ThreadPoolExecutor(NUM_CLIENTS) as clients:
                first = list(clients.map(ask, range(NUM_REQUESTS // 2)))
                rest = [clients.submit(ask, number) for number in range(NUM_REQUESTS // 2, NUM_REQUESTS)]
                killed = kill_a_worker(data_dir, [each.name for each in models])
                answers = first + [each.result() for each in rest]
            evictions = num_evictions(address)
    failed = [why for why, _ in answers if why]
    seconds = sorted(took for _, took in answers)
    yield _fact("requests with the right vector", f"{len(answers) - len(failed)} of {len(answers)}", not failed)
    if failed:
        yield _fact("first failure", failed[0][:200])
    yield _fact("evictions", int(evictions), evictions > 0)
    yield _fact("workers killed with kill -9", killed, killed > 0)
    yield _fact("median and longest request, s", f"{seconds[len(seconds) // 2]:.3f}, {seconds[-1]:.2f}")


def asked(address: Address, models: Sequence[str], expected: Any, number: int) -> tuple[str, float]:
    """Send one request to a model of Zipf's choice; return why its answer is wrong, empty if right, and its seconds."""
    weights = 1 / np.arange(1, len(models) + 1)
    model = np.random.default_rng(number).choice(models, p=weights / weights.sum())
    began = time.monotonic()
    try:
        alike = cosine(address.infer(model, text_of(16))[None], expected)
    except OSError as exc:
        body = exc.read().decode(errors="replace") if isinstance(exc, HTTPError) else ""
        return f"{exc} {body}", time.monotonic() - began
    return "" if alike >= ALIKE else f"cosine {alike}", time.monotonic() - began


def kill_a_worker(data_dir: Path, models: Sequence[str]) -> int:
    """Kill the first worker that has a model's weights; return how many were killed, 0 or 1."""
    for model in models:
        for record in records_of(data_dir / "status", model, "inference"):
            if pid := worker_of(record).pid:
                os.kill(pid, signal.SIGKILL)
                return 1
    return 0


def num_evictions(address: Address) -> float:
    with urllib.request.urlopen(f"{address.url('door_port')}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(SWAPS) and EVICTION in line)


def _fact(what: str, value: object, passed: bool | None = None) -> Finding:
    judged = {} if passed is None else {"passed": passed}
    row = {"what": what, "value": value, **judged}
    return Finding("residency", f"{NUM_MODELS} x {MODEL}, {what}: {json.dumps(value)}", row)
