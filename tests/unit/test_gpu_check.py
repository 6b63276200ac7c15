"""The check for machines with a GPU, run as they run it, at tiny sizes on the CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sie_triton.bench.architectures import build
from sie_triton.bench.gpu_check import fidelity, runner
from sie_triton.bench.gpu_check.scope import Part, Plan
from sie_triton.bench.gpu_check.speed import recorded
from sie_triton.bench.lanes import token_batch
from sie_triton.engines.torch.attention import packed
from sie_triton.engines.torch.attention.kernels import KERNELS
from sie_triton.engines.torch.captured import CapturedPasses
from sie_triton.engines.torch.encoder import PACKED, Encoder
from sie_triton.families.token_batch import tokens

ROOT = Path(__file__).parents[2]

# What such a machine need not have.
ABSENT = ("aiohttp", "click", "platformdirs", "pydantic", "pydantic_settings", "pytriton", "tenacity", "tritonclient")
HIDE = f"""
from importlib.machinery import PathFinder

real = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {ABSENT!r} else real(name, path, target)

PathFinder.find_spec = find_spec
"""


def gpu_check(directory: Path, *options: str) -> tuple[int, list[str]]:
    """Status and lines of `scripts/gpu-check`, without what need not be there."""
    (directory / "sitecustomize.py").write_text(HIDE)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(directory), "PATH": path}
    command = [ROOT / "scripts" / "gpu-check", "--dry-run", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, done.stdout.splitlines()


def test_a_dry_run_makes_every_comparison_and_every_measurement(tmp_path):
    status, lines = gpu_check(tmp_path)
    found = json.loads(lines[-1])
    assert status == 0
    assert (found["holds"], found["failed"], found["skipped"]) == (True, {}, [])
    assert "platformdirs is not installed" in lines[0]

    compared = {(entry["architecture"], entry["dtype"], entry["kernel"]) for entry in found["comparisons"]}
    everywhere = {"sdpa", "eager", "padded", "captured"}
    here = {"float32": {*everywhere, "native"}, "bfloat16": everywhere}
    assert compared >= {
        (name, dtype, way) for name in fidelity.COMPARED for dtype, ways in here.items() for way in ways
    }
    assert all(entry["passed"] for entry in found["comparisons"])
    wrong = [entry["error"] / entry["limit"] for entry in found["comparisons"] if entry["is_control"]]
    assert len(wrong) == 10
    assert min(wrong) > 2

    (machine,), (memory,), (latency,) = found["machine"], found["memory"], found["latency"]
    assert machine["float32"]["flash_attention_2"] == "it needs a GPU and float16 or bfloat16"
    assert machine["packages"]["torch"]
    assert memory["weights_bytes"] > 4 * 30522 * 64
    assert memory["after"]["used"] > 0
    assert {"ours", "ours, captured", "transformers"} <= latency.keys()
    assert [entry["lengths"] for entry in found["speed"]] == ["512 tokens", "5 to 512 tokens"]
    for entry in found["speed"]:
        assert set(entry["tokens_per_s"]) == {"packed", "padded", "transformers", "sentence-transformers"}
        assert all(0 < share < 1 for share in entry["share_of_peak"].values())
    assert found["server"] == [{"started": False, "because": "dry run"}]


def test_a_query_that_is_measured_as_captured_is(monkeypatch):
    encoder = Encoder(build("BERT"))
    encoder.use(PACKED)
    passes, batch = [], token_batch([np.full(12, 1000, np.int32)])
    hidden_states = CapturedPasses.hidden_states
    monkeypatch.setattr(CapturedPasses, "hidden_states", lambda *given: passes.append(1) or hidden_states(*given))
    adapter = SimpleNamespace(encoder=encoder, forward=lambda batch: encoder.hidden_states(*tokens(batch)))
    forward = recorded(adapter, batch)
    forward()
    adapter.forward(batch)
    assert passes == [1]


def test_a_kernel_that_is_wrong_is_caught_and_named(monkeypatch):
    own = dict(KERNELS)
    monkeypatch.setattr(fidelity, "KERNELS", own)
    monkeypatch.setattr(packed, "KERNELS", own)
    found = list(fidelity.compare("ModernBERT-base", Plan("cpu", is_dry=True, broken="sdpa")))
    failed = {(entry["dtype"], entry["kernel"]) for _, _, entry in found if not entry["passed"]}
    assert failed == {("float32", "sdpa"), ("bfloat16", "sdpa")}
    assert [line for _, line, _ in found if line.startswith("ModernBERT-base, float32, sdpa: off by 1.")]
    assert sum(line.endswith("FAILED") for _, line, _ in found) == 2


def test_one_that_raises_has_failed_too():
    def compute():
        raise RuntimeError("CUDA error: misaligned address")

    _, line, entry = fidelity.finding({"architecture": "a", "dtype": "d", "kernel": "k", "limit": 1.0}, compute, None)
    assert (entry["passed"], entry["error"]) == (False, None)
    assert line.endswith("FAILED, RuntimeError: CUDA error: misaligned address")


def test_without_a_gpu_it_says_what_to_do(monkeypatch, capsys):
    from sie_triton.bench.gpu_check import __main__ as program

    monkeypatch.setattr(program, "choose_device", lambda _: "cpu")
    monkeypatch.setattr(sys, "argv", ["gpu-check"])
    assert program.main() == 2
    assert "no NVIDIA GPU can be used here; --dry-run" in capsys.readouterr().err


def works(plan):
    yield "comparisons", "one", {"passed": True}


def fails(plan):
    yield "comparisons", "one", {"passed": False}


def raises(plan):
    yield from works(plan)
    raise ValueError("no such kernel")


def dies(plan):
    yield from works(plan)
    os._exit(3)


def hangs(plan):
    yield from works(plan)
    time.sleep(60)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (raises, "ValueError: no such kernel"),
        (dies, "its process ended with status 3"),
        (hangs, "not done after 1 s"),
    ],
)
def test_a_part_that_fails_says_so_and_the_others_go_on(monkeypatch, capfd, work, why):
    monkeypatch.setattr(runner, "PART_LIMIT_S", 1)
    parts = [Part("good", works), Part("bad", work), Part("last", works)]
    report = runner.run(parts, Plan("cpu", is_dry=True), minutes=1)
    assert not report.holds
    assert report.failed["bad"].startswith(why)
    assert len(report.comparisons) == 3  # what was found before it failed is kept
    assert f"FAILED: {why}" in capfd.readouterr().out


def test_what_there_is_no_time_for_is_skipped_with_a_line(monkeypatch, capsys):
    report = runner.run([Part("good", works), Part("last", works)], Plan("cpu"), minutes=0)
    assert report.skipped == ["good", "last"]
    assert "last: skipped, 0 minutes are over" in capsys.readouterr().out
    assert report.holds
    assert not runner.run([Part("kernels", works, is_needed=True)], Plan("cpu"), minutes=0).holds


def test_what_is_cut_off_was_not_compared(monkeypatch):
    monkeypatch.setattr(runner, "WORTH_BEGINNING_S", 0)
    for is_needed in (True, False):
        report = runner.run([Part("slow", hangs, is_needed=is_needed)], Plan("cpu"), minutes=0.01)
        assert (report.skipped, report.holds) == (["slow"], not is_needed)


def test_one_comparison_that_fails_is_enough():
    assert runner.run([Part("good", works)], Plan("cpu"), minutes=1).holds
    assert not runner.run([Part("good", works), Part("bad", fails)], Plan("cpu"), minutes=1).holds


def test_where_cuda_does_not_bear_a_fork_parts_are_started_anew(monkeypatch, capsys):
    def findings(part, plan, clock, method):
        if method == "fork":
            yield runner.FAILED, "", {"error": "CUDA cannot be initialized again"}
        else:
            yield from part.work(plan)

    monkeypatch.setattr(runner, "findings", findings)
    report = runner.run([Part("machine", works), Part("last", works)], Plan("cuda:0"), minutes=1)
    assert (report.holds, report.method, len(report.comparisons)) == (True, "spawn", 2)
    assert report.fork_failed == "CUDA cannot be initialized again"
    assert "a forked process cannot use the GPU" in capsys.readouterr().out
