"""Responses to requests whose rows are complete."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sie_triton.errors import SIEError
from sie_triton.stages.open_requests import OpenRequests
from sie_triton.stages.request import DEFERRED, Answer, Outputs
from sie_triton.stages.stage import internal_error
from sie_triton.stages.work import Work


class Replies:
    """Sends responses. Deferred ones go through a separate thread, because each waits for Triton's acknowledgement.

    `outputs` turns a job into the outputs for postprocess. Any thread may call any method.
    """

    def __init__(self, stage: str, outputs: Callable[[Work], Outputs], open_requests: OpenRequests) -> None:
        self._stage, self._outputs, self._open = stage, outputs, open_requests
        self._thread = ThreadPoolExecutor(1, "reply")

    def now(self, job: Work) -> Answer:
        """Return the answer that `execute` returns for a job."""
        return DEFERRED if job.is_deferred else self._result(job)

    def later(self, job: Work) -> None:
        self._thread.submit(self._send, job)

    def close(self) -> None:
        """Wait until all responses are sent, then end the thread."""
        self._thread.shutdown()

    def _send(self, job: Work) -> None:
        if job.request in self._open:
            self._open.reply(job.request, self._result(job))

    def _result(self, job: Work) -> Outputs | SIEError:
        try:
            return job.error or self._outputs(job)
        except Exception as exc:
            return internal_error(self._stage, exc)
