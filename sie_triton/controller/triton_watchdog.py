"""End a tritonserver that runs and answers nothing any more; the launcher then starts another."""

import logging
import signal
from threading import Event, Thread

from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.model_control import ModelControl
from sie_triton.system.processes.pids import ProcessId

log = logging.getLogger(__name__)


class TritonWatchdog:
    """Asks Triton whether it is alive, over gRPC, on a thread of its own: an answer may take as long as a timeout.

    A tritonserver whose heap is damaged may hang in its own handler of SIGABRT, for ever: gRPC stands still, HTTP says
    that all models are ready. The controller's round sets `triton`, the process that the stages belong to. One that has
    never answered still starts, and one that is stopped (SIGSTOP) may go on; neither is ended.
    """

    def __init__(self, control: ModelControl, limits: ControllerLimits = ControllerLimits()) -> None:
        self.triton: ProcessId | None = None
        self._control, self._limits = control, limits
        self._watched: ProcessId | None = None
        self._has_answered = False
        self._num_silent = 0
        self._closing = Event()
        Thread(target=self._run, name="watch-triton", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def look(self) -> None:
        """Ask once; end the process after `max_silent_looks` without an answer."""
        triton = self.triton
        if triton != self._watched:
            self._watched, self._has_answered, self._num_silent = triton, False, 0
        if triton is None or not triton.is_alive or triton.is_stopped:
            return
        if self._control.answers(self._limits.watch_timeout_s):
            self._has_answered, self._num_silent = True, 0
        elif self._has_answered:
            self._num_silent += 1
            if self._num_silent == self._limits.max_silent_looks:
                log.error("tritonserver (process %d) runs and does not answer; ending it", triton.pid)
                triton.send(signal.SIGKILL)

    def _run(self) -> None:
        while not self._closing.wait(self._limits.watch_s):
            self.look()
