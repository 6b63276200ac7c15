"""A stage that starts cold: the first request makes it load its tokenizer or worker.

Every request is counted, subject to a limit, and answered once: at once, later, or at its deadline.
"""

import errno
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Lock
from time import monotonic, monotonic_ns
from typing import Generic, TypeVar

from sie_triton.contract.names import sie_name
from sie_triton.errors import BusyError, Cancelled, LoadError, ModelError, ModelLoading, SIEError
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.background import Background
from sie_triton.pipeline.stages.open_requests import GONE, OpenRequest, OpenRequests
from sie_triton.pipeline.stages.request import Answer, Origin, Request
from sie_triton.records.calls import Calls
from sie_triton.records.request_limit import too_many
from sie_triton.records.revisions import model_of
from sie_triton.records.status import COLD, LOADING, StatusWriter
from sie_triton.system.host.files import FULL
from sie_triton.system.telemetry.identity import MAX_ID
from sie_triton.system.telemetry.request_log import RequestLog
from sie_triton.system.telemetry.spans import close_spans, event, spans

log = logging.getLogger(__name__)

# Errors of a process or machine that has no file handle left now; the next request loads again.
NO_HANDLES = (errno.EMFILE, errno.ENFILE)

Loaded = TypeVar("Loaded")


def told(stage: str, error: BaseException) -> SIEError:
    """Return what the client gets of an error: one that is not ours is logged in full, and told without details."""
    if isinstance(error, SIEError):
        return error
    log.exception("%s failed", stage, exc_info=error)
    return ModelError(f"{stage} failed with {type(error).__name__}; tritonserver.log has the details")


def _load_error(stage: str, error: BaseException) -> LoadError:
    if isinstance(error, OSError) and error.errno in FULL:
        return LoadError(f"{error.filename or 'a file of the model'}: {error.strerror}", "disk full")
    return error if isinstance(error, LoadError) else LoadError(str(told(stage, error)))


class ColdStage(ABC, Generic[Loaded]):
    """A stage that loads a tokenizer or a worker when the first request comes.

    Holds the status record of its process, the deferred requests, a background thread, and the loaded object. Requests
    that arrive before it is loaded wait, and are answered together afterwards. A failed load is remembered: every
    request gets its error at once, for `retry_load_s`, or until this process ends if a retry cannot help. A lack
    of file handles is not remembered.

    Triton's thread calls `execute`, one call at a time, and `close`. The background thread loads, and processes the
    requests that waited. `execute` returns errors as answers and never raises. `load` raises LoadError, or BusyError if
    the model is evicted meanwhile.
    """

    name: str

    def __init__(self, status: StatusWriter, max_concurrent_requests: int, limits: StageLimits = StageLimits()) -> None:
        self.status, self.limits = status, limits
        self.limit = max_concurrent_requests
        self._calls = Calls(status.directory, self.name)
        self.open = OpenRequests(status, self._calls, self._failed_with, limits)
        self._model_name = sie_name(model_of(status.model))
        self._log = RequestLog(self._model_name)
        self.background = Background(self.name, self.fault)
        self._lock, self._counting = Lock(), Lock()
        self._loaded: Loaded | None = None
        self._waiting: list[OpenRequest] = []
        self._failure: tuple[LoadError, float] | None = None
        self.closing = Event()

    @abstractmethod
    def load(self) -> Loaded:
        """Load. Called on the background thread, or by `warm_up`, until it succeeds. Raise LoadError."""

    @abstractmethod
    def process(self, loaded: Loaded, requests: Sequence[OpenRequest]) -> None:
        """Answer each request, or defer it and answer it later."""

    @abstractmethod
    def origin(self, request: Request) -> Origin:
        """Return what is known of a request that is not read, and may be invalid. Never raises."""

    def places_left(self) -> int:
        """Return how many more requests may enter now."""
        return self.limit - int(self.status.record["num_open"])

    def refusal(self) -> BusyError:
        """Return the error of requests for which there was no place."""
        return too_many(self.limit)

    def check_call(self, token: str) -> None:
        """Raise Cancelled if the client of a door's call has disconnected already, InputError for a malformed token."""
        if token and (call := self._calls.find(token)) is not None and call.is_revoked():
            raise Cancelled(GONE)

    def failure(self) -> SIEError:
        """Return the error for requests after whose arrival the loaded object went: that of the last load, if any."""
        failure = self._failure
        return failure[0] if failure else ModelLoading("the model is not in memory any more; retry")

    @contextmanager
    def fetching(self) -> Iterator[Callable[[str], None]]:
        """Context for the part of `load` that fetches files. It gives a function to report the progress.

        The progress goes to the status record, to the errors of requests that expire, and at intervals to the log. The
        function raises LoadError once this process is about to end, and BusyError once another process takes its
        requests.
        """
        is_late = self.status.has_successor()
        log_after = 0.0

        def report_progress(doing: str) -> None:
            nonlocal log_after
            if self.closing.is_set():
                raise LoadError("this process is about to end")
            if not is_late and self.status.has_successor():
                raise ModelLoading("the model was evicted while its weights were fetched; retry")
            self.open.loading, self.status.record["fetching_ns"] = doing, monotonic_ns()
            if monotonic() >= log_after:
                log.info("%s: %s", self.status.model, doing)
                log_after = monotonic() + self.limits.load_log_s

        try:
            yield report_progress
        finally:
            self.open.loading, self.status.record["fetching_ns"] = "", 0

    def warm_up(self) -> None:
        """Load now, on this thread. If that fails, the first request gets the error."""
        with suppress(SIEError):
            self._loaded = self._load()

    def preload(self) -> None:
        """Load on the background thread; the status record says so at once."""
        self.status.record["state"] = LOADING
        self.load_soon()

    def load_soon(self) -> None:
        """Load on the background thread, like a first request."""
        self.background.submit(self._load_and_reply(), self._load_broke_off)

    def fault(self) -> None:
        """Count an error outside the handling of a request."""
        self.status.add(num_faults=1)

    def execute(self, requests: Sequence[Request]) -> list[Answer]:
        """Return one answer per request. Never raises: Triton would also answer deferred requests, and crash later."""
        self.status.record["last_used_ns"] = monotonic_ns()
        accepted: list[OpenRequest] = []
        try:
            accepted = [OpenRequest(request, self.open) for request in requests[: max(0, self.places_left())]]
            self.status.add(num_requests=len(accepted), num_open=len(accepted))
            self._process_or_wait(accepted)
        except BaseException as exc:
            self._fail(accepted, exc)
        answers: list[Answer] = []
        num_deferred = 0
        for open_request in accepted:
            if open_request.returned is None:
                self._fail([open_request], AssertionError("a request was neither answered nor deferred"))
            assert open_request.returned is not None
            num_deferred += open_request.is_deferred
            answers.append(open_request.returned)
        if refused := requests[len(accepted) :]:
            error = self.refusal()
            for request in refused:
                self._failed_with(request, error)
                answers.append(error)
        self.status.add(num_deferred=num_deferred, num_open=num_deferred - len(accepted), num_refused=len(refused))
        return answers

    def close(self) -> None:
        self.closing.set()
        self.background.close()
        self.open.close()
        close_spans()

    def _process_or_wait(self, requests: Sequence[OpenRequest]) -> None:
        with self._lock:
            loaded = self._loaded
            if loaded is None:
                self._wait(requests)
                return
        self.process(loaded, requests)

    def _failed_with(self, request: Request, error: SIEError) -> None:
        """Count and report an error before its request is answered with it. Never raises."""
        try:
            with self._counting:
                self.status.traffic.fail(error)
            if self._log.is_on or spans():
                self._report(request, error)
        except Exception:
            log.exception("an error could not be reported; its request is answered")
            self.fault()

    def _report(self, request: Request, error: SIEError) -> None:
        """Write the log line, and record the span, of a failed request, if they are wanted."""
        tracing = spans()
        origin = self.origin(request)
        id, trace = origin.id, origin.trace
        latency_ms, text = (monotonic_ns() - origin.arrived_ns) / 1e6, f"{error.kind}: {error}"
        if self._log.wants(latency_ms):
            self._log.add(latency_ms, id, trace.trace_id, text)
        if tracing and trace.is_recorded:
            attributes = {"sie.model": self._model_name, "sie.request_id": id[:MAX_ID], "sie.error": error.kind}
            tracing.end(trace, f"{self.name} {self._model_name}", origin.arrived_ns, attributes, text)

    def _fail(self, requests: Sequence[OpenRequest], error: BaseException) -> None:
        """Fail those of `requests` that are not answered yet."""
        self.fault()
        answer = told(self.name, error)
        for request in requests:
            request.answer(answer)

    def _wait(self, requests: Sequence[OpenRequest]) -> None:
        failure = self._failure
        if failure is not None and monotonic() < failure[1]:
            for request in requests:
                request.answer(failure[0])
            return
        for request in requests:
            origin = self.origin(request.request)
            request.defer(origin.deadline_ns, origin.call)
        if not self._waiting:
            self.load_soon()
        self._waiting += requests

    def _load_and_reply(self) -> Iterator[None]:
        try:
            loaded = self._loaded or self._load()
        except SIEError as exc:
            for request in self._take_waiting(None):
                request.answer(exc)
            return
        waiting = [request for request in self._take_waiting(loaded) if request.is_open]
        try:
            self.process(loaded, waiting)
        except BaseException as exc:
            self._fail(waiting, exc)
        yield

    def _load_broke_off(self, error: BaseException) -> None:
        """Fail the waiting requests after an error outside `load`, which handles its own."""
        self._fail(self._take_waiting(None), error)

    def _load(self) -> Loaded:
        self.status.record["state"] = LOADING
        self.open.loading = ""
        try:
            with event(f"load {self.name}", {"sie.model": self._model_name}):
                loaded = self.load()
        except BusyError:  # evicted meanwhile, which is not a failure
            self.status.record["state"] = COLD
            raise
        except BaseException as exc:
            if isinstance(exc, OSError) and exc.errno in NO_HANDLES:
                self.status.record["state"] = COLD
                log.warning("%s cannot load now: %s", self.name, exc)
                raise BusyError(f"{self.name} cannot load now ({exc.strerror}); retry") from exc
            error = _load_error(self.name, exc)
            self.status.load_failed(error.reason, str(error))
            if error.is_permanent:
                remedy = f"fix this, then run sie-triton load {model_of(self.status.model)}"
                self._failure = (error.refusal(remedy), math.inf)
            else:
                remedy = f"the first request after {self.limits.retry_load_s:g} s tries again"
                self._failure = (error.refusal(remedy), monotonic() + self.limits.retry_load_s)
            log.error("%s: %s", self.name, self._failure[0])
            raise self._failure[0] from exc
        finally:
            self.open.loading = None
        self.status.loaded()
        self._failure = None
        return loaded

    def _take_waiting(self, loaded: Loaded | None) -> list[OpenRequest]:
        with self._lock:
            self._loaded = loaded
            waiting, self._waiting = self._waiting, []
            return waiting
