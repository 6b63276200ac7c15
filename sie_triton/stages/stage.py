"""A stage that starts cold: what it needs is loaded when the first request comes."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

from sie_triton.errors import LoadError, ModelError, SIEError
from sie_triton.stages.background import Background
from sie_triton.stages.request import DEFERRED, Answer, Request

log = logging.getLogger(__name__)

RETRY_LOAD_AFTER_S = 30.0

Loaded = TypeVar("Loaded")


def internal_error(stage: str, error: Exception) -> ModelError:
    """Log what the client must not see, and give the client one line."""
    log.exception("%s failed", stage, exc_info=error)
    return ModelError(f"{stage} failed with {type(error).__name__}; the server log has the details")


class ColdStage(ABC, Generic[Loaded]):
    """Requests that arrive while cold wait, and are answered together once loading is done.

    A failed load is remembered: for RETRY_LOAD_AFTER_S every request gets its error at once.
    """

    name: str

    def __init__(self) -> None:
        self.background = Background(self.name)
        self._lock = Lock()
        self._loaded: Loaded | None = None
        self._waiting: list[Request] = []
        self._failure: tuple[LoadError, float] | None = None

    @abstractmethod
    def load(self) -> Loaded:
        """Called once, on the background thread (or by `warm_up`); raises LoadError."""

    @abstractmethod
    def answer(self, loaded: Loaded, requests: Sequence[Request]) -> list[Answer]:
        """One answer per request, DEFERRED where `reply` will be called later."""

    def warm_up(self) -> None:
        """Load now, on this thread; a failure is left for the first request to see."""
        with suppress(SIEError):
            self._loaded = self._load()

    def execute(self, requests: Sequence[Request]) -> list[Answer]:
        with self._lock:
            if self._loaded is None:
                return self._wait(requests)
        return self.answer(self._loaded, requests)

    def close(self) -> None:
        self.background.close()

    def _wait(self, requests: Sequence[Request]) -> list[Answer]:
        if self._failure is not None and monotonic() < self._failure[1]:
            return [self._failure[0]] * len(requests)
        for request in requests:
            request.defer()
        if not self._waiting:
            self.background.submit(self._load_and_reply())
        self._waiting += requests
        return [DEFERRED] * len(requests)

    def _load_and_reply(self) -> Iterator[None]:
        try:
            loaded = self._load()
        except SIEError as exc:
            for request in self._take_waiting(None):
                request.reply(exc)
            return
        waiting = self._take_waiting(loaded)
        for request, answer in zip(waiting, self.answer(loaded, waiting), strict=True):
            if answer is not DEFERRED:
                request.reply(answer)
        yield

    def _load(self) -> Loaded:
        try:
            return self.load()
        except Exception as exc:
            error = exc if isinstance(exc, LoadError) else LoadError(str(internal_error(self.name, exc)))
            self._failure = (error, monotonic() + RETRY_LOAD_AFTER_S)
            log.error("%s: loading failed: %s", self.name, error)
            raise error from exc

    def _take_waiting(self, loaded: Loaded | None) -> list[Request]:
        with self._lock:
            self._loaded = loaded
            waiting, self._waiting = self._waiting, []
            return waiting
