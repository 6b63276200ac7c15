"""Runs the parts one after another, each in a process of its own: what one breaks or hangs in is lost to it alone.

They are forked from a process that has imported PyTorch, as the server's workers are. Where CUDA does not bear that,
which is a finding of its own, they are started anew.
"""

import multiprocessing
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from sie_triton.bench.gpu_check.scope import Finding, Part, Plan

# A part that would have less time than this is not begun.
WORTH_BEGINNING_S = 10.0

# One that takes longer hangs.
PART_LIMIT_S = 180.0

FAILED, CUT_OFF = "failed", "cut off"


class Clock:
    def __init__(self, minutes: float) -> None:
        self._started = time.monotonic()
        self._limit_s = 60 * minutes

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def left_s(self) -> float:
        return max(0.0, self._limit_s - self.elapsed_s)


@dataclass
class Report:
    """Entries by section; `failed` parts with why; `skipped` parts, for which there was no time."""

    sections: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    holds: bool = False
    method: str = "fork"
    fork_failed: str = ""

    def say(self, clock: Clock, line: str) -> None:
        print(f"{clock.elapsed_s:6.1f} s  {line}", flush=True)

    @property
    def comparisons(self) -> list[dict[str, Any]]:
        return self.sections.get("comparisons", [])


def run(parts: Sequence[Part], plan: Plan, minutes: float) -> Report:
    """All that there is time for. It `holds` if no part failed and every needed comparison was made and passed."""
    clock, report = Clock(minutes), Report()
    for part in parts:
        if clock.left_s < WORTH_BEGINNING_S:
            report.say(clock, f"{part.name}: skipped, {minutes:g} minutes are over")
            report.skipped.append(part.name)
            continue
        _run_part(part, plan, clock, report)
        if part is parts[0] and part.name in report.failed and plan.device != "cpu":
            report.say(clock, "a forked process cannot use the GPU: from now on each part imports everything itself")
            report.method, report.fork_failed = "spawn", report.failed.pop(part.name)
            _run_part(part, plan, clock, report)
    missing = [part.name for part in parts if part.is_needed and part.name in report.skipped]
    report.holds = all(entry["passed"] for entry in report.comparisons) and not missing and not report.failed
    return report


def _run_part(part: Part, plan: Plan, clock: Clock, report: Report) -> None:
    report.say(clock, part.name)
    for section, line, entry in findings(part, plan, clock, report.method):
        report.say(clock, f"  {line}")
        if section == FAILED:
            report.failed[part.name] = entry["error"]
        elif section == CUT_OFF:
            report.skipped.append(part.name)
        else:
            report.sections.setdefault(section, []).append(entry)


def findings(part: Part, plan: Plan, clock: Clock, method: str = "fork") -> Iterator[Finding]:
    """What a child finds, as it finds it; at last why it did not come to its end, if so."""
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(part, plan, theirs), name=part.name)
    child.start()
    theirs.close()
    limit = Clock(PART_LIMIT_S / 60)
    try:
        while ours.poll(min(clock.left_s, limit.left_s)):
            if (found := ours.recv()) is None:
                return
            yield found
        if clock.left_s:
            yield _failure(f"not done after {PART_LIMIT_S:g} s")
        else:
            yield CUT_OFF, "cut off, the time is over", {}
    except EOFError:
        child.join()
        yield _failure(f"its process ended with status {child.exitcode}")
    finally:
        child.kill()
        child.join()


def _work(part: Part, plan: Plan, out: "Connection[Any, Any]") -> None:
    try:
        for found in part.work(plan):
            out.send(found)
    except Exception as exc:
        traceback.print_exc()
        out.send(_failure(f"{type(exc).__name__}: {exc}"))
    out.send(None)


def _failure(error: str) -> Finding:
    return FAILED, f"FAILED: {error}", {"error": error[:500]}
