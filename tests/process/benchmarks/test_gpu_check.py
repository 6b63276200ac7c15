"""The check for GPU machines, run as a dry run: tiny sizes on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_check import parts as table
from benchmarks.gpu_check.parts import kernels, rivals

ROOT = Path(__file__).parents[3]

# Packages that a GPU machine may lack; accelerate needs psutil.
NEVER = ("aiohttp", "click", "platformdirs", "pydantic_settings", "pytriton", "tritonclient")
OPTIONAL = {
    "rich": ("rich",),
    "psutil": ("psutil", "accelerate"),
    "sentence-transformers": ("sentence_transformers",),
    "pydantic": ("pydantic", "pydantic_core"),
}
HIDE = """
from importlib.machinery import PathFinder

real = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {hidden!r} else real(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""

# Parts that need a GPU.
SKIPPED_ON_CPU = {"kernels/flash_attention_2", "kernels/varlen", "faults/calibration"}

# Parts that are quick: the others start several processes that import PyTorch.
QUICK = "machine,kernels/sdpa,speed/BERT-base,workers/BERT-base"

# Parts that need a tritonserver.
OF_A_SERVER = {"server", "residency", *(f"rivals/{name}" for name in table.RIVALED)}


def environment(directory: Path, hidden: tuple[str, ...]) -> dict[str, str]:
    """Return an environment in which the packages `hidden` cannot be imported, in child processes too."""
    (directory / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(directory), "PATH": path}


def gpu_check(directory: Path, *options: str, hidden: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """Return the exit status and the output lines of `scripts/gpu-check --dry-run`."""
    command = [ROOT / "scripts" / "gpu-check", "--dry-run", "--minutes", "60", *options]
    done = subprocess.run(
        command, env=environment(directory, hidden), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, done.stdout.splitlines()


def check_all_parts_ran(found: dict) -> None:
    """Assert that every part ran and reported its measurements."""
    assert found["skipped"].keys() == SKIPPED_ON_CPU | OF_A_SERVER
    assert found["checks"]["made"] == found["checks"]["passed"] > 70

    compared = {(row["model"], row["dtype"], row["kernel"]) for row in found["model_fidelity"]}
    everywhere = {"sdpa", "eager", "padded", "captured"}
    here = {"float32": {*everywhere, "native"}, "bfloat16": everywhere}
    packed_models = ("BERT-base", "ModernBERT-base", "Qwen3-0.6B")
    assert compared >= {(name, dtype, way) for name in packed_models for dtype, ways in here.items() for way in ways}
    assert compared >= {(name, dtype, "packed") for name in table.MODELS[3:] for dtype in here}
    rows = [*found["model_fidelity"], *found["kernel_fidelity"]]
    wrong = [row["error"] / row["limit"] for row in rows if row["is_control"]]
    assert len(wrong) == 12
    assert min(wrong) > 2

    sizes = {(row["kernel"], row["dtype"], row["head_size"]) for row in found["kernel_fidelity"]}
    assert sizes >= {("sdpa", dtype, size) for dtype in kernels.DTYPES for size in (64, 72, 128, 256)}
    assert [row["what"] for row in found["machine"]].count("SDPA's order") == 1
    assert all(row["calls"] for row in found["fork"])  # the fake package makes transformers query CUDA
    assert len(found["graphs"]) == 5
    measured = {(row["model"], row["subject"], row["lanes"]) for row in found["speed"]}
    assert measured >= {(name, way, n) for name in table.TIMED for way in ("sdpa", "padded") for n in (1, 2)}
    assert not [row for row in found["speed"] if "raised" in row]
    assert {(row["model"], row["start"]) for row in found["workers"]} == {
        (name, start) for name in table.TIMED for start in ("first", "again")
    }
    assert {row["fault"] for row in found["faults"]} == {"out of memory in a pass", "a token beyond the vocabulary"}
    assert {row["subject"] for row in found["query"]} >= {"packed", "captured", "transformers"}


@pytest.mark.timeout(700)
@pytest.mark.parametrize("only", [QUICK, pytest.param("", marks=pytest.mark.slow)])
def test_a_dry_run_needs_torch_transformers_and_numpy_alone(tmp_path, only):
    hidden = (*NEVER, *sum(OPTIONAL.values(), ()))
    chosen = ["--only", only] if only else []
    status, lines = gpu_check(tmp_path, "--output", str(tmp_path / "report.md"), *chosen, hidden=hidden)
    found = json.loads(lines[-1])
    assert status == 0, lines
    assert (found["holds"], found["failed"], found["cut_off"]) == (True, {}, {})
    if only:
        assert found["checks"]["made"] == found["checks"]["passed"] > 10
    else:
        check_all_parts_ran(found)
    assert "sentence-transformers: sentence_transformers is not installed" in found["notes"][0]["note"]
    assert "Worker processes; memory in MB" in lines  # a table without rich
    assert "## Worker processes" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_the_parts_with_a_whole_server_run_on_a_cpu_too(tmp_path):
    status, lines = gpu_check(tmp_path, "--only", "server,residency,rivals")
    found = json.loads(lines[-1])
    assert (status, found["cut_off"], found["failed"], found["skipped"]) == (0, {}, {}, {}), lines
    assert found["checks"]["passed"] == 6
    assert {row["what"]: row["value"] for row in found["residency"]}["requests with the right vector"] == "300 of 300"
    loads = {(row["model"], row["load"], row["subject"]) for row in found["rivals"]}
    servers = (rivals.OURS, rivals.IN_GROUPS, rivals.BY_HAND)
    assert loads >= {(name, "2 x 4", subject) for name in table.RIVALED for subject in servers}
    steps = {(row["model"], row["subject"]) for row in found["steps"] if 0 < row["inference"] < row["total"]}
    assert steps == {(name, subject) for name in table.RIVALED for subject in servers[:2]}
