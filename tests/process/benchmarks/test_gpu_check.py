"""The check for GPU machines, run as a dry run: tiny sizes on the CPU."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from benchmarks.architectures import build
from benchmarks.gpu_check import fidelity
from benchmarks.gpu_check import parts as table
from benchmarks.gpu_check.__main__ import _arguments
from benchmarks.gpu_check.parts import faults, graphs, kernels, models, rivals
from benchmarks.gpu_check.parts.query import captured
from benchmarks.gpu_check.process import Gauge
from benchmarks.gpu_check.scope import CannotRun, Plan
from benchmarks.lanes import token_batch
from sie_triton.engines.torch.attention import packed
from sie_triton.engines.torch.attention.kernels import KERNELS, sdpa_attention
from sie_triton.engines.torch.cuda_graphs import CapturedPasses
from sie_triton.engines.torch.encoder import PACKED, TorchEncoder
from sie_triton.errors import ModelError
from sie_triton.models.families.shared.token_batch import tokens
from sie_triton.pipeline.worker.handle import WorkerDied
from tests.support.controller import wait_for

ROOT = Path(__file__).parents[3]
DRY = Plan("cpu", is_dry=True)

# Packages that a GPU machine may lack; accelerate needs psutil.
NEVER = ("aiohttp", "click", "platformdirs", "pydantic_settings", "pytriton", "tenacity", "tritonclient")
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
    assert (found["holds"], found["failed"], found["cut_off"]) == (True, {}, {})
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
    assert {row["setting"] for row in found["cudnn"]} == {"off", "on", "on, and first"}
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
def test_a_dry_run_needs_torch_transformers_and_numpy_alone(tmp_path):
    hidden = (*NEVER, *sum(OPTIONAL.values(), ()))
    status, lines = gpu_check(tmp_path, "--output", str(tmp_path / "report.md"), hidden=hidden)
    found = json.loads(lines[-1])
    assert status == 0, lines
    check_all_parts_ran(found)
    assert "sentence-transformers: sentence_transformers is not installed" in found["notes"][0]["note"]
    assert "Worker processes; memory in MB" in lines  # a table without rich
    assert "## Faults of a worker" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("package", OPTIONAL)
def test_without_one_package_every_other_part_runs(tmp_path, package):
    status, lines = gpu_check(tmp_path, hidden=(*NEVER, *OPTIONAL[package]))
    found = json.loads(lines[-1])
    assert status == 0, lines
    check_all_parts_ran(found)
    # Without psutil there is no accelerate, which sentence-transformers may need.
    if package in ("rich", "pydantic"):
        assert "sentence-transformers, from text" in {row["subject"] for row in found["query"]}


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


@pytest.mark.slow
def test_a_part_that_is_cut_off_leaves_no_server_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [ROOT / "scripts" / "gpu-check", "--dry-run", "--only", "server"]
    process = subprocess.Popen(command, env=environment(tmp_path, ()), stdout=subprocess.PIPE, text=True)

    def servers() -> list[psutil.Process]:
        found = psutil.process_iter(["cmdline"])
        return [each for each in found if str(tmp_path) in " ".join(each.info["cmdline"] or ())]

    wait_for(lambda: any("tritonserver" in each.info["cmdline"][0] for each in servers()))
    process.send_signal(signal.SIGTERM)
    assert json.loads(process.communicate()[0].splitlines()[-1])["cut_off"] == {"server": "the run was stopped"}
    wait_for(lambda: not servers())


def test_an_interrupted_run_has_reported_all_results_before(tmp_path):
    """`timeout` ends a run with SIGTERM; the results until then are printed."""
    command = [ROOT / "scripts" / "gpu-check", "--dry-run", "--only", "machine,fork,query"]
    process = subprocess.Popen(command, env=environment(tmp_path, ()), stdout=subprocess.PIPE, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "fork, at most" in line:
            process.send_signal(signal.SIGTERM)
    found = json.loads(lines[-1])
    assert process.wait() == 1
    assert len(found["machine"]) > 10
    assert found["cut_off"] == {
        "fork": "the run was stopped",
        "query/BERT-base": "no time was left",
        "query/Qwen3-0.6B": "no time was left",
    }


def test_only_captured_measurements_run_captured_passes(monkeypatch):
    encoder = TorchEncoder(build("BERT"))
    encoder.use(PACKED)
    passes, batch = [], token_batch([np.full(12, 1000, np.int32)])
    hidden_states = CapturedPasses.hidden_states
    monkeypatch.setattr(CapturedPasses, "hidden_states", lambda *given: passes.append(1) or hidden_states(*given))
    adapter = SimpleNamespace(encoder=encoder, forward=lambda batch: encoder.hidden_states(*tokens(batch)))
    forward = captured(adapter, batch)
    forward()
    adapter.forward(batch)
    assert passes == [1]


@pytest.fixture
def own_kernels(monkeypatch):
    """Private copy of the table of kernels, which a test may change."""
    own = dict(KERNELS)
    for module in (fidelity, kernels, models, packed):
        monkeypatch.setattr(module, "KERNELS", own)
    return own


def test_a_kernel_that_is_wrong_is_caught_and_named(own_kernels):
    found = list(models.compare("ModernBERT-base", Plan("cpu", is_dry=True, broken="sdpa")))
    failed = {(row["dtype"], row["kernel"]) for _, _, row in found if not row["passed"]}
    assert failed == {("float32", "sdpa"), ("bfloat16", "sdpa")}
    assert sum(line.endswith("FAILED") for _, line, _ in found) == 2


@pytest.mark.parametrize(
    ("wrong", "failing"),
    [
        (lambda q, k, v, segments, *given: sdpa_attention(q, k, v, segments.of(segments.lengths), *given), "partial"),
        (lambda q, k, v, segments, scaling, window: sdpa_attention(q, k, v, segments, scaling, (-1, -1)), "window"),
        (lambda q, k, v, *given: sdpa_attention(q, k.flip(1), v.flip(1), *given), "GQA"),
        (lambda q, k, v, *given: sdpa_attention(q, k, v, *given).masked_fill(torch.tensor(True), torch.nan), "equal"),
    ],
)
def test_a_kernel_that_is_wrong_in_some_cases_fails_with_their_names(own_kernels, wrong, failing):
    own_kernels["sdpa"] = wrong
    _, line, row = kernels.worst("sdpa", torch.float16, kernels.cases(64, DRY), DRY)
    assert not row["passed"]
    assert failing in " ".join(row["failing"])
    assert "FAILED" in line


def test_a_kernel_that_cannot_run_here_is_skipped_with_what_it_lacks():
    with pytest.raises(CannotRun, match="it needs a GPU and float16"):
        list(kernels.compare("varlen", DRY))


def test_a_check_that_raises_has_failed():
    def compute():
        raise RuntimeError("CUDA error: misaligned address")

    row = fidelity.judged("varlen", compute)
    assert (row["passed"], row["error"]) == (False, None)
    assert row["verdict"] == "FAILED, RuntimeError: CUDA error: misaligned address"


def test_large_weights_leave_the_range_of_float16_before_they_are_scaled():
    from benchmarks.gpu_check.shapes import sharpened

    layer = sharpened("DeBERTa, large weights", DRY).encoder.layer[0].attention.self
    with torch.inference_mode():
        states = torch.nn.functional.layer_norm(torch.randn(70, 64), (64,))
        query, key = (
            projection(states).view(70, 4, 16).transpose(0, 1) for projection in (layer.query_proj, layer.key_proj)
        )
        largest = float((query @ key.mT).abs().max())
    assert largest > torch.finfo(torch.float16).max
    assert largest / (3 * 16) ** 0.5 < torch.finfo(torch.float16).max


def test_a_pass_that_differs_during_a_capture_is_reported(monkeypatch):
    states = iter([torch.ones(2, 4), *[torch.zeros(2, 4)] * 1000])
    monkeypatch.setattr(graphs.Passes, "run", lambda self: next(states))
    passes = graphs.Passes(SimpleNamespace(dtype=torch.float32), (1, 1), DRY)
    lane = graphs.Beside(passes, DRY)
    lane.join()
    with pytest.raises(RuntimeError, match="pass 1 AssertionError: its states are off by"):
        lane.stop()


class FakeWorker:
    """Worker that raises `errors` one after another, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def forward(self, batch: object, threads: int) -> None:
        if self._errors:
            raise self._errors.pop(0)

    def close(self) -> None:
        pass


def test_recovery_by_the_same_worker_or_a_replacement_is_reported(monkeypatch):
    @contextmanager
    def started(order):
        yield FakeWorker()

    monkeypatch.setattr(faults, "started", started)
    monkeypatch.setattr(faults, "PATIENCE_S", 0.5)
    failed = ModelError("CUDA error")
    assert faults.next_answer(FakeWorker(failed), None)[0] == "the same worker answers, after 1 failed passes"
    assert faults.next_answer(FakeWorker(failed, WorkerDied("")), None)[0].startswith("a replacement answers")
    then, seconds = faults.next_answer(FakeWorker(*[failed] * 100), None)
    assert then.endswith("passes fail, and the worker does not end")
    assert seconds is None


def test_a_fault_that_was_not_provoked_gets_no_verdict():
    row = {"fault": "f", "told": faults.ANSWERED, "then": "t"}
    assert "passed" not in faults.finding(row, is_provoked=False, passed=False).row
    assert faults.finding(dict(row), is_provoked=True, passed=False).row["passed"] is False


def test_memory_that_is_not_freed_is_reported(child):
    assert Gauge(DRY).freed_ms(child.pid, patience_s=0.05) is None
    child.kill()
    child.wait()
    assert Gauge(DRY).freed_ms(child.pid, patience_s=5) < 5000


def test_without_a_gpu_it_says_what_to_do(monkeypatch, capsys):
    from benchmarks.gpu_check import __main__ as program

    monkeypatch.setattr(program, "choose_device", lambda _: "cpu")
    monkeypatch.setattr(sys, "argv", ["gpu-check"])
    assert program.main() == 2
    assert "no usable NVIDIA GPU; --dry-run" in capsys.readouterr().err


def test_parts_are_chosen_by_name_or_by_group(capsys):
    assert [part.name for part in table.chosen(["faults", "models/BERT-base"])] == [
        "models/BERT-base",
        *(f"faults/{name}" for name in table.FAULTS),
    ]
    assert {part.name.split("/")[0] for part in table.chosen([])} == table.ABOUT.keys()
    with pytest.raises(SystemExit):
        _arguments(["--only", "speeds"])
    assert "unknown part 'speeds'; known are machine, fork, kernels" in capsys.readouterr().err


def test_the_help_names_every_part(capsys):
    with pytest.raises(SystemExit):
        _arguments(["--help"])
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in table.ABOUT)
