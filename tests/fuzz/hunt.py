"""Hypothesis draws cases of a target, runs them, and makes those that find something as small as it can."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from tests.fuzz.finding import Escaped, Finding, finding_of
from tests.fuzz.target import Target

# Cases of one run of Hypothesis, which remembers all of them to draw none twice.
CASES_A_RUN = 2000

# Findings after which a target is left alone.
MAX_FINDINGS = 20


class LoggedErrors(logging.Handler):
    """Keeps exceptions that code logs instead of raising them: a stage answers such a request with a ModelError."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._found.append(record.exc_info[1])

    def check(self) -> None:
        """Raise the first exception since the last call."""
        if self._found:
            error = self._found[0]
            self._found.clear()
            raise error


class Hunt:
    """Cases of one target. `begin` and `end` are called around each; findings at the places `known` are left out."""

    def __init__(
        self,
        target: Target,
        known: set[str],
        begin: Callable[[Any], None] = lambda case: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._target, self._known = target, known
        self._begin, self._end = begin, end
        self._errors = LoggedErrors()
        self._latest: dict[str, Finding] = {}
        self.num_cases = 0

    def run(self, num_cases: int, start: int) -> Iterator[Finding]:
        """Yield the findings of `num_cases` cases, or of a few more; `start` is the seed."""
        with self.listening():
            while self.num_cases < num_cases and len(self._known) < MAX_FINDINGS:
                before = self.num_cases
                yield from self._found(min(CASES_A_RUN, num_cases - self.num_cases), start)
                if self.num_cases == before:
                    raise AssertionError("the target has no cases")
                start += 1_000_003

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the exceptions that are logged within the context."""
        logging.getLogger().addHandler(self._errors)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(self._errors)

    def _found(self, num_cases: int, start: int) -> list[Finding]:
        self._latest = {}
        try:
            self._test(num_cases, start)()
        except Exception:
            if not self._latest:  # a fault of the harness
                raise
        self._known |= self._latest.keys()
        return list(self._latest.values())

    def _test(self, num_cases: int, start: int) -> Callable[[], None]:
        @seed(start)
        @settings(
            max_examples=num_cases,
            deadline=None,
            database=None,
            print_blob=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        @given(self._target.cases)
        def test(case: Any) -> None:
            self._begin(case)
            self.num_cases += 1
            try:
                self.check(case)
            except Exception as exc:
                finding = finding_of(exc, case)
                if finding.place not in self._known:
                    self._latest[finding.place] = finding  # the last one is the smallest that Hypothesis has tried
                    raise
            finally:
                self._end()

        return test

    def check(self, case: Any) -> None:
        """Run one case; raise what is found. What the code has logged tells more than what it has made of that."""
        try:
            self._target.run(case)
        except self._target.refusals:
            pass
        except (Exception, KeyboardInterrupt):
            self._errors.check()
            raise
        except BaseException as exc:
            raise Escaped(f"{type(exc).__name__}: {exc}").with_traceback(exc.__traceback__) from exc
        self._errors.check()
