"""Work that must not hold up `execute`: one thread, many jobs, a step of each in turn."""

import logging
from collections import deque
from collections.abc import Iterator
from threading import Condition, Thread

log = logging.getLogger(__name__)

Job = Iterator[None]


class Background:
    """Runs jobs round robin on one thread. A job is an iterator; each `next` is one step."""

    def __init__(self, name: str) -> None:
        self._changed = Condition()
        self._jobs: deque[Job] = deque()
        self._closed = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                next(job)
            except StopIteration:
                continue
            except Exception:
                log.exception("background job ended with an error it should have answered with")
                continue
            self.submit(job)

    def _next_job(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return self._jobs.popleft() if self._jobs else None
