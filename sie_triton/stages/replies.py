"""Answers to requests whose rows are all there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sie_triton.errors import SIEError
from sie_triton.stages.open_requests import OpenRequests
from sie_triton.stages.request import DEFERRED, Answer, Outputs
from sie_triton.stages.stage import internal_error
from sie_triton.stages.work import Work


class Replies:
    """Deferred ones are sent from one thread of its own, since each waits for Triton's acknowledgement.

    `outputs` makes of a job what postprocess gets. Any thread may call any method.
    """

    def __init__(self, stage: str, outputs: Callable[[Work], Outputs], open_requests: OpenRequests) -> None:
        self._stage, self._outputs, self._open = stage, outputs, open_requests
        self._thread = ThreadPoolExecutor(1, "reply")

    def now(self, job: Work) -> Answer:
        """For `execute` to return."""
        return DEFERRED if job.is_deferred else self._result(job)

    def later(self, job: Work) -> None:
        self._thread.submit(self._send, job)

    def close(self) -> None:
        """Once all are sent."""
        self._thread.shutdown()

    def _send(self, job: Work) -> None:
        if job.request in self._open:
            self._open.reply(job.request, self._result(job))

    def _result(self, job: Work) -> Outputs | SIEError:
        try:
            return job.error or self._outputs(job)
        except Exception as exc:
            return internal_error(self._stage, exc)
