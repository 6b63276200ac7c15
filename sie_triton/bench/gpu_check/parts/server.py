"""The whole server with a model of real size, if tritonserver and its other packages are installed."""

import json
import os
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

from sie_triton.bench.gpu_check.parts.fork import VARIABLE
from sie_triton.bench.gpu_check.scope import CannotRun, Finding, Plan
from sie_triton.bench.gpu_check.shapes import save, text_of, tokens_of
from sie_triton.bench.gpu_check.work import Library, cosine
from sie_triton.bench.lanes import timed
from sie_triton.bench.ports import ports_of_a_server
from sie_triton.records.status import records_of
from sie_triton.server.find_triton import NGC_ROOT

MODEL = "BERT-base"
NEEDED = ("aiohttp", "click", "platformdirs", "prometheus_client", "pydantic_settings", "tritonclient")
ALIKE = 0.999

# Timeout of a request, in seconds; the first waits for the weights.
LOAD_S = 120

# Time limit for recording and measuring graphs, in seconds.
GRAPH_S = 30


def measure(plan: Plan) -> Iterator[Finding]:
    """Compare a served vector with that of transformers, and time the requests of one client."""
    if lacking := missing_requirements(plan):
        raise CannotRun(lacking)
    with tempfile.TemporaryDirectory() as scratch:
        directory, text = save(MODEL, plan, Path(scratch)), text_of(16)
        with served(plan, directory, Path(scratch)) as url:
            ours = infer(url, directory.name, text)
            graph_tokens = wait_for_graph(url, directory.name, text, Path(scratch))
            ms = 1000 * median(timed(partial(infer, url, directory.name, text)) for _ in range(100))
        alike = cosine(ours[None], Library(MODEL, plan, directory, "float32").vectors([tokens_of(16)]))
    yield _fact("one client, ms", round(ms, 2))
    yield _fact("largest sub-batch by a CUDA graph, tokens", graph_tokens)
    yield _fact("cosine of a served vector and transformers'", round(alike, 5), passed=alike >= ALIKE)


def missing_requirements(plan: Plan) -> str:
    """Return what the server needs and this machine lacks; empty if it can start."""
    if plan.is_dry:
        return "it needs a GPU"
    if not (NGC_ROOT / "bin" / "tritonserver").is_file() and find_spec("pytriton") is None:
        return "no tritonserver is installed"
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"{', '.join(missing)}: not installed" if missing else ""


def _fact(what: str, value: object, **judged: bool) -> Finding:
    return Finding("server", f"{MODEL}, {what}: {value}", {"what": what, "value": value, **judged})


@contextmanager
def served(plan: Plan, directory: Path, scratch: Path) -> Iterator[str]:
    """Serve the model in `directory` by the command line; yield the server's address."""
    ports = ports_of_a_server()
    flags = [f"--{name.replace('_', '-')}={port}" for name, port in ports.items()]
    options = ["--device", plan.device, "--data-dir", str(scratch / "data"), *flags]
    command = [sys.executable, "-m", "sie_triton.cli", "serve", str(directory), *options]
    # Without the variable that the check sets for its own forks; the server must set it itself.
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if "SIE ready" not in process.stdout.readline():
                raise RuntimeError(f"the server ended with status {process.wait()}")
            yield f"http://127.0.0.1:{ports['http_port']}"
        finally:
            process.terminate()


def wait_for_graph(url: str, model: str, text: str, scratch: Path) -> int:
    """Return the largest sub-batch that runs as a CUDA graph; 0 if there is no graph after GRAPH_S."""
    ended = monotonic() + GRAPH_S
    while monotonic() < ended:
        infer(url, model, text)
        (record,) = records_of(scratch / "data" / "status", model, "inference")
        if record["graph_tokens"]:
            return int(record["graph_tokens"])
    return 0


def infer(url: str, model: str, text: str) -> Any:
    """Request a vector, float32 [dim]."""
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}
    body |= {"outputs": [{"name": "dense"}]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=LOAD_S) as response:
        return np.array(json.load(response)["outputs"][0]["data"], np.float32)
