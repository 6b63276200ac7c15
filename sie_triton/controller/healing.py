"""Replace dead processes, and remove what they left behind.

The records of dead processes say what to replace; they stay until that is done.
"""

import logging
import signal
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from time import monotonic

from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.memory import orphaned_regions
from sie_triton.controller.model_control import OutOfService
from sie_triton.controller.model_states import ModelState, Processes, Stages
from sie_triton.controller.swaps import Backoff, Swaps
from sie_triton.records.revisions import model_of
from sie_triton.records.status import Record, loras_path, status_path, worker_of
from sie_triton.system.processes.pids import ProcessId

log = logging.getLogger(__name__)


class Healing:
    """Replaces processes that died, ends those that are stopped, and removes the shared memory that both leave.

    Holds the results of earlier rounds: stopped processes, attempts, orphaned regions.
    `directory` holds the status records. The controller's round calls every method. The error of a swap is not raised;
    the swap is retried.
    """

    def __init__(self, directory: Path, swaps: Swaps, limits: ControllerLimits = ControllerLimits()) -> None:
        self._directory, self._limits = directory, limits
        self._swaps = swaps
        self._stopped: set[ProcessId] = set()
        self._attempts = Backoff(limits)
        self._orphans: set[Path] = set()
        self._orphans_sought = self._died_at = monotonic()

    @property
    def is_over(self) -> bool:
        """False after a death, and while a process is stopped: a later round has something to end or to remove."""
        return not (self._stopped or self._orphans or monotonic() - self._died_at < self._limits.after_death_s)

    def heal(self, stages: Stages, models: Mapping[str, ModelState], leaving: Container[str] = ()) -> None:
        """Start a new process for each stage without a living one, and end the workers of dead stages.

        Nothing is replaced in `earlier` revisions, nor in revisions that get no requests yet.
        """
        for stage, by_steps in stages.items():
            for steps, processes in by_steps.items():
                self._died_at = monotonic() if processes.dead else self._died_at
                _end_workers(processes.dead)
                model = models.get(model_of(steps))
                if processes.living or steps in leaving:
                    self._attempts.end((steps, stage))
                    self._forget(steps, stage, processes.dead)
                elif model is None or model.steps == steps:
                    self._replace(steps, stage, processes)

    def end_stopped(self, stages: Stages, fork_servers: Iterable[ProcessId]) -> None:
        """Kill the processes that are stopped in two consecutive rounds; a later round replaces them."""
        stopped = {process for process in fork_servers if process.is_stopped}
        for by_steps in stages.values():
            stopped.update(each for processes in by_steps.values() for each in processes.stopped)
        for process in stopped & self._stopped:
            process.send(signal.SIGKILL)
        self._stopped = stopped

    def remove_orphans(self, triton: int) -> None:
        """Remove shared memory of processes that died with requests in them, which Triton leaks.

        It is removed if two consecutive scans find it.
        """
        now = monotonic()
        is_urgent = self._orphans or now - self._died_at < self._limits.after_death_s
        if now - self._orphans_sought > (self._limits.scan_s if is_urgent else self._limits.rare_scan_s):
            self._orphans_sought = now
            orphans = orphaned_regions(triton)
            for region in orphans & self._orphans:
                log.info("removing orphaned shared memory %s", region)
                region.unlink(missing_ok=True)
            self._orphans = orphans

    def start_anew(self) -> None:
        """Reset for a new tritonserver, with which no attempt has been made."""
        self._attempts.clear()

    def _replace(self, steps: str, stage: str, processes: Processes) -> None:
        if self._attempts.is_due((steps, stage)):
            self._attempts.begin((steps, stage))
            swap = self._swaps.swap(model_of(steps), stage, "heal")
            swap.add_done_callback(partial(self._give_up_unserved, steps, stage, processes.dead))

    def _give_up_unserved(self, steps: str, stage: str, dead: Sequence[Record], swap: Future[None]) -> None:
        if not swap.cancelled() and isinstance(swap.exception(), OutOfService):
            self._forget(steps, stage, dead)

    def _forget(self, steps: str, stage: str, dead: Sequence[Record]) -> None:
        for record in dead:
            path = status_path(self._directory, steps, stage, record["pid"], record["copy"])
            for each in (path, loras_path(path)):
                each.unlink(missing_ok=True)


def _end_workers(dead: Iterable[Record]) -> None:
    """Kill the workers of dead stages: a worker that still loads does not notice that its stage has died."""
    for record in dead:
        if record["worker_pid"]:
            worker_of(record).send(signal.SIGKILL)
