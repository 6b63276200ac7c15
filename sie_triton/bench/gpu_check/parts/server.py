"""The whole server with a model of real size, where a tritonserver and what else it needs were carried here."""

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

from sie_triton.bench.gpu_check.scope import Finding, Plan
from sie_triton.bench.gpu_check.shapes import save
from sie_triton.bench.gpu_check.speed import text_of
from sie_triton.bench.lanes import timed
from sie_triton.bench.ports import ports_of_a_server
from sie_triton.records.status import records_of
from sie_triton.server.find_triton import NGC_ROOT

MODEL = "BERT-base"
NEEDED = ("aiohttp", "click", "platformdirs", "prometheus_client", "pydantic_settings", "tritonclient")
ALIKE = 0.999

# The first request waits for the weights.
LOAD_S = 120

# Recording and measuring graphs takes seconds.
GRAPH_S = 30


def measure(plan: Plan) -> Iterator[Finding]:
    """A served vector beside sentence-transformers', and the median of one client's requests."""
    lacking = what_is_lacking(plan)
    if lacking:
        yield "server", f"not started: {lacking}", {"started": False, "because": lacking}
        return
    with tempfile.TemporaryDirectory() as scratch:
        directory, text = save(MODEL, plan, Path(scratch)), text_of(16)
        with served(plan, directory, Path(scratch)) as url:
            ours = infer(url, directory.name, text)
            graph_tokens = wait_for_graph(url, directory.name, text, Path(scratch))
            ms = 1000 * median(timed(partial(infer, url, directory.name, text)) for _ in range(100))
        theirs = expected(plan, directory, text)
    cosine = float(ours @ theirs / (np.linalg.norm(ours) * np.linalg.norm(theirs)))
    entry = {"started": True, "model": MODEL, "one_client_ms": ms, "cosine": cosine, "graph_tokens": graph_tokens}
    yield "server", f"{MODEL}: one client {ms:.1f} ms, cosine {cosine:.5f}", entry
    if not cosine >= ALIKE:
        raise AssertionError(f"a served vector is not sentence-transformers': cosine {cosine:.5f}")


def what_is_lacking(plan: Plan) -> str:
    """Empty if the server can be started."""
    if plan.is_dry:
        return "dry run"
    if not (NGC_ROOT / "bin" / "tritonserver").is_file() and find_spec("pytriton") is None:
        return "no tritonserver was carried here"
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"without {', '.join(missing)}" if missing else ""


@contextmanager
def served(plan: Plan, directory: Path, scratch: Path) -> Iterator[str]:
    """A server of the model in `directory`, as its command line starts it; its address."""
    ports = ports_of_a_server()
    flags = [f"--{name.replace('_', '-')}={port}" for name, port in ports.items()]
    options = ["--device", plan.device, "--data-dir", str(scratch / "data"), *flags]
    command = [sys.executable, "-m", "sie_triton.cli", "serve", str(directory), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if "SIE ready" not in process.stdout.readline():
                raise RuntimeError(f"the server ended with status {process.wait()}")
            yield f"http://127.0.0.1:{ports['http_port']}"
        finally:
            process.terminate()


def wait_for_graph(url: str, model: str, text: str, scratch: Path) -> int:
    """The largest sub-batch that goes through a CUDA graph once there is one; 0: there was none within GRAPH_S."""
    ended = monotonic() + GRAPH_S
    while monotonic() < ended:
        infer(url, model, text)
        (record,) = records_of(scratch / "data" / "status", model, "inference")
        if record["graph_tokens"]:
            return int(record["graph_tokens"])
    return 0


def infer(url: str, model: str, text: str) -> Any:
    """float32 [dim]."""
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}
    body |= {"outputs": [{"name": "dense"}]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=LOAD_S) as response:
        return np.array(json.load(response)["outputs"][0]["data"], np.float32)


def expected(plan: Plan, directory: Path, text: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(directory), device=plan.device).encode([text])[0]
