"""Whether CUDA works in a forked process after the imports of a fork server.

If flash-attn is installed, transformers calls torch.cuda.is_available during its import. By default PyTorch then
calls CUDA itself, which makes CUDA unusable in processes that are forked later. With PYTORCH_NVML_BASED_CUDA_CHECK=1 it
uses NVML instead, and CUDA works. An empty package stands in for flash-attn.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.scope import Finding, Plan

VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
FAKE = "a fake package"
NOT_CHANGED = "as installed"

MODULE = "flash_attn/__init__.py"
FILES = {
    MODULE: '__version__ = "2.8.3"\n\n\ndef __getattr__(name):\n    raise AttributeError(name)\n',
    "flash_attn-2.8.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n",
    "flash_attn-2.8.3.dist-info/top_level.txt": "flash_attn\n",
    "flash_attn-2.8.3.dist-info/RECORD": f"{MODULE},,\n",
}

# Time limit for the imports and one small computation, in seconds; beyond it, assume a deadlock.
LIMIT_S = 40


def compare(plan: Plan) -> Iterator[Finding]:
    """Report each combination; those with the variable, which a server must set, must work."""
    cases = [(FAKE, ""), (FAKE, "1"), (NOT_CHANGED, ""), (NOT_CHANGED, "1")]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:
        for path, text in FILES.items():
            (Path(scratch) / path).parent.mkdir(exist_ok=True)
            (Path(scratch) / path).write_text(text)
        runs = pool.map(partial(forked, plan, Path(scratch)), cases[: 2 if plan.is_dry else None])
        for (package, variable), found in zip(cases, runs, strict=False):
            row = {"flash_attn": package, "variable": variable or "not set", **found}
            if variable:
                row["passed"] = found["child"] == "computes"
            told = f"flash-attn {package}, {VARIABLE} {row['variable']}: is_available called {found['calls']} times"
            yield Finding("fork", f"{told} by the imports, the forked process {found['child']}", row)


def forked(plan: Plan, packages: Path, case: tuple[str, str]) -> dict[str, Any]:
    """Run this module in a separate process and return its output."""
    package, variable = case
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if variable:
        environment[VARIABLE] = variable
    if package == FAKE:
        environment["PYTHONPATH"] = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        )
    command = [sys.executable, "-m", __name__, plan.device]
    limit_s = LIMIT_S if plan.is_gpu else 10 * LIMIT_S
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"calls": 0, "child": f"is not finished after {limit_s} s"}
    if done.returncode:
        return {"calls": 0, "child": f"the imports failed: {done.stderr.strip().splitlines()[-1]}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(device: str) -> None:
    """Import as the fork server does, fork, and compute in the child."""
    import torch

    calls, is_available = [], torch.cuda.is_available
    torch.cuda.is_available = lambda: bool(calls.append(1)) or is_available()  # type: ignore[func-returns-value]
    from sie_triton.engines.torch.process import import_all

    import_all()
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            told = "computes" if float(torch.ones(3, device=device).sum()) == 3 else "computes wrongly"
        except Exception as exc:
            told = f"{type(exc).__name__}: {exc}".splitlines()[0]
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        print(json.dumps({"calls": len(calls), "child": pipe.read() or "ended without output"}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
