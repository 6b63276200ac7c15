"""Runs the parts one after another, each in a separate process, so that a crash or a hang affects one part only.

The processes are forked from one that has imported PyTorch, like the server's workers. If CUDA does not work in a
forked process, which is reported, each part is spawned instead and imports everything itself.
"""

import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.gpu_check.scope import CannotRun, CheckPart, Finding, Plan, Row

# A part with less time than this is not started.
WORTH_BEGINNING_S = 3.0

# Polling interval for a stopped run, in seconds.
LOOK_S = 0.2

FAILED, SKIPPED, CUT_OFF = "failed", "skipped", "cut off"


class Clock:
    """Time of a run. It starts when the clock is created, and is over when the limit has passed or `stopped` is set."""

    def __init__(self, minutes: float) -> None:
        self._started = time.monotonic()
        self._limit_s = 60 * minutes
        self.stopped = threading.Event()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def left_s(self) -> float:
        return 0.0 if self.stopped.is_set() else max(0.0, self._limit_s - self.elapsed_s)


@dataclass
class Report:
    """Rows by table; `failed`, `skipped` and `cut_off` parts, each with a reason.

    Skipped parts need something that this machine lacks; parts that were cut off ran out of time.
    """

    tables: dict[str, list[Row]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    cut_off: dict[str, str] = field(default_factory=dict)
    holds: bool = False
    method: str = "fork"
    fork_failed: str = ""

    @property
    def checks(self) -> list[Row]:
        return [row for rows in self.tables.values() for row in rows if "passed" in row]

    def judge(self, parts: Sequence[CheckPart]) -> None:
        """Set `holds`: True if no part failed, every needed part finished, and every check passed."""
        unfinished = [part.name for part in parts if part.is_needed and part.name in self.cut_off]
        self.holds = all(row["passed"] for row in self.checks) and not unfinished and not self.failed


def run(
    parts: Sequence[CheckPart], plan: Plan, clock: Clock, after_part: Callable[[Report], None] = lambda report: None
) -> Report:
    """Run the parts until time runs out; call `after_part` with the report so far after each part.

    A part's limit is its share of the remaining time, so that later parts get the time that earlier ones did not use.
    """
    report = Report()
    for number, part in enumerate(parts):
        limit_s = clock.left_s * part.seconds / sum(each.seconds for each in parts[number:])
        _run_part(part, plan, limit_s, clock, report)
        if number == 0 and part.name in report.failed and plan.is_gpu:
            _say(clock, "a forked process cannot use the GPU; from now on each part imports everything itself")
            report.method, report.fork_failed = "spawn", report.failed.pop(part.name)
            _run_part(part, plan, clock.left_s, clock, report)
        report.judge(parts)
        after_part(report)
    report.judge(parts)
    return report


def _run_part(part: CheckPart, plan: Plan, limit_s: float, clock: Clock, report: Report) -> None:
    if limit_s < WORTH_BEGINNING_S:
        report.cut_off[part.name] = "no time was left"
        _say(clock, f"{part.name}: not started, no time is left")
        return
    _say(clock, f"{part.name}, at most {limit_s:.0f} s")
    endings = {FAILED: report.failed, SKIPPED: report.skipped, CUT_OFF: report.cut_off}
    for table, line, row in findings(part, plan, limit_s, clock.stopped, report.method):
        _say(clock, f"  {line}")
        if table in endings:
            endings[table][part.name] = row["reason"]
        else:
            report.tables.setdefault(table, []).append(row)


def findings(
    part: CheckPart, plan: Plan, limit_s: float, stopped: threading.Event, method: str = "fork"
) -> Iterator[Finding]:
    """Yield the findings of a child process as they arrive; if it does not finish, yield the reason last."""
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(part, plan, theirs), name=part.name)
    child.start()
    theirs.close()
    ends = time.monotonic() + limit_s
    try:
        while not stopped.is_set() and (left_s := ends - time.monotonic()) > 0:
            if not ours.poll(min(LOOK_S, left_s)):
                continue
            if (found := ours.recv()) is None:
                return
            yield found
        yield _ending(
            CUT_OFF, "the run was stopped" if stopped.is_set() else f"not finished after {limit_s:.0f} s, and killed"
        )
    except EOFError:
        child.join()
        yield _ending(FAILED, f"its process ended with status {child.exitcode}")
    finally:
        child.kill()
        child.join()


def _work(part: CheckPart, plan: Plan, out: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    try:
        for found in part.work(plan):
            out.send(found)
    except CannotRun as exc:
        out.send(_ending(SKIPPED, str(exc)))
    except ModuleNotFoundError as exc:
        out.send(_ending(SKIPPED, f"{exc.name} is not installed"))
    except Exception as exc:
        traceback.print_exc()
        out.send(_ending(FAILED, f"{type(exc).__name__}: {exc}"))
    out.send(None)


def _ending(how: str, reason: str) -> Finding:
    return Finding(how, f"{how.upper()}: {reason}", {"reason": reason[:500]})


def _say(clock: Clock, line: str) -> None:
    print(f"{clock.elapsed_s:6.1f} s  {line}", flush=True)
