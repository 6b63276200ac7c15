"""Background work, which must not delay `execute`: a few threads run many jobs, one step of each in turn."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition, Thread, current_thread

from sie_triton.errors import BusyError
from sie_triton.pipeline.scheduling.threads import started

Steps = Iterator[None]
Failed = Callable[[BaseException], None]
Job = tuple[Steps, Failed]


class Background:
    """Threads with many jobs, round robin. A job is an iterator; each `next` is one step, by one thread at a time.

    At most `most_begun` jobs take turns, or any number if it is 0. Further jobs wait, in order, until one of them ends.

    Any thread may submit. A thread starts when a job finds none idle, up to `num_threads`, and ends once it was idle
    for `idle_s` seconds. An exception of a step ends its job, and is passed to that job's `failed`, on the same thread.
    `fault()` is called if a thread itself fails, and the thread continues. `close` waits for the threads, so no step
    may call it.
    """

    def __init__(
        self,
        name: str,
        fault: Callable[[], None],
        num_threads: int = 1,
        most_begun: int = 0,
        idle_s: float = 10.0,
    ) -> None:
        self._name, self._fault = name, fault
        self._num_threads, self._idle_s = num_threads, idle_s
        self._changed = Condition()
        self._jobs: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._may_begin = most_begun or sys.maxsize
        self._closed = False
        self._threads: set[Thread] = set()
        self._num_idle = 0

    def submit(self, steps: Steps, failed: Failed) -> None:
        """Add a job. If a step raises an exception, the job ends and `failed(error)` is called.

        Raise BusyError, and add nothing, if there is no thread for the job and the system starts none.
        """
        with self._changed:
            begins = self._may_begin > 0
            if self._num_idle < len(self._jobs) + begins and len(self._threads) < self._num_threads:
                self._start()
            self._may_begin -= begins
            (self._jobs if begins else self._waiting).append((steps, failed))
            self._changed.notify()

    def close(self) -> None:
        """Finish the submitted jobs, then end the threads."""
        with self._changed:
            self._closed = True
            threads = [*self._threads]
            self._changed.notify_all()
        for thread in threads:
            thread.join()

    def _start(self) -> None:
        """Start a thread; if the system starts none, the others suffice."""
        try:
            self._threads.add(started(self._run, self._name, self._fault))
        except BusyError:
            if not self._threads:
                raise

    def _run(self) -> None:
        while self._take_turn():
            pass

    def _take_turn(self) -> bool:
        """Run one step of the next job; False once closed or idle. Keep no reference to the job, which may be large."""
        job = self._next_job()
        if job is None:
            return False
        steps, failed = job
        try:
            next(steps)
        except StopIteration:
            self._end_turn(None)
        except BaseException as exc:
            self._end_turn(None)
            failed(exc)
        else:
            self._end_turn(job)
        return True

    def _end_turn(self, job: Job | None) -> None:
        """Put `job` back in line. None: the job has ended, and the first waiting one takes its place."""
        with self._changed:
            following = self._waiting.popleft() if job is None and self._waiting else job
            if following is None:
                self._may_begin += 1
            else:
                self._jobs.append(following)
                self._changed.notify()

    def _next_job(self) -> Job | None:
        """Wait for the next job; None if this thread must end."""
        with self._changed:
            self._num_idle += 1
            self._changed.wait_for(lambda: self._jobs or self._closed, self._idle_s)
            self._num_idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._threads.discard(current_thread())
            return None
