"""CUDA graphs captured while another thread runs passes, and a capture that fails on purpose meanwhile."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_check.scope import Finding, Plan
from benchmarks.gpu_check.shapes import build
from benchmarks.gpu_check.timing import own_stream
from sie_triton.engines.torch.cuda_graphs import SIZES, CapturedPasses
from sie_triton.engines.torch.encoder import PACKED, TorchEncoder
from sie_triton.engines.torch.probe import TOLERANCE, relative_error

# Item lengths of the captured pass, and of the passes that run meanwhile.
CAPTURED_LENGTHS, BESIDE_LENGTHS = (7, 12, 1, 40), (300, 64, 64, 1, 129)

JOIN_S = 20


class Passes:
    """A pass over items of these lengths, and its expected states."""

    def __init__(self, encoder: TorchEncoder, lengths: tuple[int, ...], plan: Plan) -> None:
        self.lengths = np.array(lengths, np.int32)
        self.input_ids = np.random.default_rng(5).integers(1000, 20000, self.lengths.sum(), dtype=np.int32)
        self._encoder, self._limit = encoder, TOLERANCE[encoder.dtype]
        self._expected = self.run()

    def run(self) -> torch.Tensor:
        return self._encoder.hidden_states(self.input_ids, self.lengths)

    def captured(self, passes: CapturedPasses) -> torch.Tensor:
        types = np.zeros_like(self.input_ids)
        positions = self._encoder.positions(self.input_ids, self.lengths)
        return passes.hidden_states(self.input_ids, self.lengths, self.lengths, types, positions)

    def check(self, states: torch.Tensor) -> str:
        """Return the error of the states as text. Raise AssertionError if it is too large."""
        error = relative_error(states, self._expected)
        assert error <= self._limit, f"its states are off by {error:.1e}"
        return f"off by {error:.1e}"


class Beside(threading.Thread):
    """A lane that runs passes on a stream of its own until it is stopped."""

    def __init__(self, passes: Passes, plan: Plan) -> None:
        super().__init__(daemon=True)
        self._passes, self._plan = passes, plan
        self._ended = threading.Event()
        self.num_passes, self.error = 0, ""
        self.start()

    def run(self) -> None:
        try:
            with own_stream(self._plan):
                while not self._ended.is_set():
                    self._passes.check(self._passes.run())
                    self.num_passes += 1
        except Exception as exc:
            self.error = f"{type(exc).__name__}: {exc}"[:300]

    def stop(self) -> str:
        """Stop the lane and return a summary. Raise RuntimeError if a pass failed or does not end."""
        self._ended.set()
        self.join(JOIN_S)
        if self.error or self.is_alive():
            raise RuntimeError(f"pass {self.num_passes + 1} {self.error or 'does not end'}")
        return f"{self.num_passes} passes meanwhile"


def check(plan: Plan) -> Iterator[Finding]:
    """Capture alone, then while passes run, then with a failure."""
    model = build("BERT-base", plan).to(getattr(torch, plan.precision))
    encoder = TorchEncoder(model)
    encoder.use(PACKED)
    few, many = Passes(encoder, CAPTURED_LENGTHS, plan), Passes(encoder, BESIDE_LENGTHS, plan)

    def capture() -> str:
        passes = CapturedPasses(encoder)
        passes.serve(SIZES[-1], SIZES[-1])
        return few.check(few.captured(passes))

    def beside() -> str:
        lane = Beside(many, plan)
        try:
            told = capture()
        finally:
            passed = lane.stop()
        return f"{told}, {passed}"

    def fail_beside() -> str:
        lane = Beside(many, plan)
        try:
            told = fail(model, lambda: few.captured(CapturedPasses(encoder)))
        finally:
            passed = lane.stop()
        return f"{told}, {passed}"

    yield _checked("captures alone", capture)
    yield _checked("captures while another thread runs passes", beside)
    yield _checked("a capture fails while another thread runs passes", fail_beside)
    yield _checked("passes after the failed capture", lambda: f"{few.check(few.run())}, {many.check(many.run())}")
    yield _checked("captures after the failed capture", capture)


def fail(model: Any, capture: Callable[[], object]) -> str:
    """Make a capture of this thread fail: wait for the device in it, which is not allowed."""
    mine = threading.get_ident()

    def stumble(module: object, given: object, states: Any) -> None:
        if threading.get_ident() != mine:
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        elif not torch.cuda.is_available():
            raise RuntimeError("simulated failure of a capture")

    hook = model.register_forward_hook(stumble)
    try:
        capture()
    except Exception as exc:
        return f"it raises {type(exc).__name__}"
    finally:
        hook.remove()
    raise AssertionError("the capture should have failed")


def _checked(what: str, work: Callable[[], str]) -> Finding:
    try:
        row = {"what": what, "detail": work(), "passed": True}
    except Exception as exc:
        row = {"what": what, "detail": f"{type(exc).__name__}: {exc}"[:300], "passed": False}
    return Finding("graphs", f"{what}: {row['detail']}: {'ok' if row['passed'] else 'FAILED'}", row)
