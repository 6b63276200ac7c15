"""A whole server with models of real size, and requests to it."""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.parts.fork import VARIABLE
from benchmarks.gpu_check.scope import CannotRun, Plan
from benchmarks.ports import ports_of_a_server
from sie_triton.server.find_triton import NGC_ROOT
from sie_triton.system.processes.child import end_with_parent, start

NEEDED = ("aiohttp", "click", "platformdirs", "prometheus_client", "pydantic_settings", "tritonclient")

# Timeout of a request, in seconds; the first waits for the weights.
LOAD_S = 120

# Polling interval for a server that starts, and time for its end, in seconds.
LOOK_S, END_S = 0.1, 20


@dataclass(frozen=True, slots=True)
class Address:
    """Ports of a server on this machine, by the name of their setting."""

    ports: dict[str, int]

    def url(self, port: str) -> str:
        return f"http://127.0.0.1:{self.ports[port]}"

    def infer(self, model: str, text: str) -> Any:
        """Request a vector, float32 [dim], over Triton's HTTP. Raise OSError for a refusal."""
        body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}
        body |= {"outputs": [{"name": "dense"}]}
        headers = {"Content-Type": "application/json"}
        address = f"{self.url('http_port')}/v2/models/{model}/infer"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=LOAD_S) as response:
            return np.array(json.load(response)["outputs"][0]["data"], np.float32)


@contextmanager
def served(plan: Plan, directories: Sequence[Path], data_dir: Path, *options: str) -> Iterator[Address]:
    """Serve the models in `directories` by the command line, with further `options`; yield the server's address.

    Raise CannotRun if a package is missing, RuntimeError if the server does not start.
    """
    if lacking := missing_requirements():
        raise CannotRun(lacking)
    ports = ports_of_a_server()
    flags = [f"--{name.replace('_', '-')}={port}" for name, port in ports.items()]
    command = [sys.executable, "-m", "sie_triton.cli", "serve", *map(str, directories)]
    command += ["--device", plan.device, "--data-dir", str(data_dir), *flags, *options]
    # Without the variable that the check sets for its own forks; the server must set it itself.
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    log = data_dir.with_suffix(".log")
    server = start(command, environment=environment, log=log, before=end_with_parent)
    try:
        while "SIE ready" not in log.read_text():
            if server.wait(LOOK_S):
                raise RuntimeError(f"the server ended with status {server.status}: {log.read_text()[-1000:]}")
        yield Address(ports)
    finally:
        server.send(signal.SIGTERM)
        server.end(END_S)


def missing_requirements() -> str:
    """Return what the server needs and this machine lacks; empty if it can start."""
    if not (NGC_ROOT / "bin" / "tritonserver").is_file() and find_spec("pytriton") is None:
        return "no tritonserver is installed"
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"{', '.join(missing)}: not installed" if missing else ""
