"""Fuzzes a target in a child, and finds what ends or stops the child: a crash, too much memory, a hang."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sie_triton.system.processes.child import describe_exit
from tests.fuzz.child import CASE, STACKS, add_finding, findings_in
from tests.fuzz.finding import MAX_TEXT, Finding
from tests.fuzz.ledger import Ledger

# Time in seconds that a child has to get ready, and between two cases: Hypothesis makes findings smaller then.
READY_S, BETWEEN_S = 300.0, 120.0

# Interval of looks at the child, in seconds, and the time that it has to say where it is.
LOOK_S, STACKS_S = 0.1, 0.5

# Children of one target. A target that ends more of them is left alone.
MAX_CHILDREN = 6

ROOT = Path(__file__).parents[2]

Report = Callable[[int], object]


@dataclass(frozen=True)
class Outcome:
    """Result for a target. `num_cases` counts all cases that were run, those too that make a finding smaller."""

    name: str
    num_cases: int
    seconds: float
    findings: list[Finding]


class HarnessError(Exception):
    """A child failed outside its cases: no finding, but a fault of the target's own code."""


def fuzzed(
    name: str, reference: str, directory: Path, num_cases: int, start: int, hang_s: float, report: Report = id
) -> Outcome:
    """Run cases of a target in children, one after another, in `directory`; `report` gets the number so far."""
    directory.mkdir(parents=True)
    ledger, done, began = Ledger(directory / CASE), 0, time.monotonic()
    for number in range(MAX_CHILDREN):
        ledger.clear()
        child = Child(reference, directory, num_cases - done, start + number)
        trouble = child.watched(ledger, hang_s, lambda num, before=done: report(before + num))
        state = ledger.state
        done += state.num_begun
        if not trouble:
            break
        if not state.is_running:
            raise HarnessError(f"{name}: {trouble}\n{child.said}")
        place = f"{trouble} in {child.place}" if child.place else trouble
        add_finding(directory, Finding(place, child.said, ledger.case()))
        if done >= num_cases:
            break
    ledger.close()
    return Outcome(name, done, time.monotonic() - began, findings_in(directory))


class Child:
    """A process that fuzzes a target, and the leader of its own processes."""

    def __init__(self, reference: str, directory: Path, num_cases: int, start: int) -> None:
        self._directory = directory
        self._output = (directory / "output").open("w+")
        command = [sys.executable, "-m", "tests.fuzz.child", reference, str(directory), str(num_cases), str(start)]
        files = {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(command, start_new_session=True, cwd=ROOT, **files)  # type: ignore[call-overload]

    def watched(self, ledger: Ledger, hang_s: float, report: Report) -> str:
        """Return once the child has ended; a text says what is wrong with it, if anything is."""
        seen, since = ledger.state, time.monotonic()
        try:
            while (status := self._process.poll()) is None:
                time.sleep(LOOK_S)
                state = ledger.state
                report(state.num_begun)
                if state != seen:
                    seen, since = state, time.monotonic()
                most = hang_s if state.is_running else BETWEEN_S if state.has_begun else READY_S
                if time.monotonic() - since > most:
                    self._ask()
                    return f"no progress for {most:g} s"
        finally:
            self._end()
        return "" if status == 0 else f"the process ended {describe_exit(status)}"

    @property
    def said(self) -> str:
        """What the child printed at last, and where it was."""
        self._output.seek(0)
        texts = (self._output.read(), (self._directory / STACKS).read_text())
        return "\n".join(text[-MAX_TEXT:] for text in texts if text)

    @property
    def place(self) -> str:
        """The line at which the child was, if it could say so."""
        lines = (self._directory / STACKS).read_text().splitlines()
        return next((line.strip() for line in lines if "/sie_triton/" in line or "/tests/" in line), "")

    def _ask(self) -> None:
        os.kill(self._process.pid, signal.SIGUSR1)
        time.sleep(STACKS_S)

    def _end(self) -> None:
        """End the child and the processes that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
