"""Work that must not hold up `execute`: one thread, many jobs, a step of each in turn."""

from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition

from sie_triton.scheduling.lasting import lasting

Steps = Iterator[None]
Failed = Callable[[BaseException], None]
Job = tuple[Steps, Failed]


class Background:
    """One thread with many jobs, round robin. A job is an iterator; each `next` is one step.

    Any thread may submit. What a step raises ends its job and is told to that job's `failed`, on the background thread.
    `fault()` is called if the thread itself fails, and the thread goes on. `close` waits for the thread, so no step
    may call it.
    """

    def __init__(self, name: str, fault: Callable[[], None]) -> None:
        self._changed = Condition()
        self._jobs: deque[Job] = deque()
        self._closed = False
        self._thread = lasting(self._run, name, fault)
        self._thread.start()

    def submit(self, steps: Steps, failed: Failed) -> None:
        """`failed(error)` is called, and the job is over, if a step raises anything."""
        with self._changed:
            self._jobs.append((steps, failed))
            self._changed.notify()

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            steps, failed = job
            try:
                next(steps)
            except StopIteration:
                continue
            except BaseException as exc:
                failed(exc)
                continue
            self.submit(steps, failed)

    def _next_job(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return self._jobs.popleft() if self._jobs else None
