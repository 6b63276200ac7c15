"""The telemetry settings of one process, which it reads from its environment when it starts.

The launcher writes them into the environment of every child, whatever a flag or a file said.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

LOG_JSON, LOG_REQUESTS, LOG_SLOW_MS, TRACING, INSTRUMENTATION = (
    "SIE_LOG_JSON",
    "SIE_LOG_REQUESTS",
    "SIE_LOG_SLOW_MS",
    "SIE_TRACING_ENABLED",
    "SIE_INSTRUMENTATION",
)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """`log_json`: each line is a JSON object. `log_requests`: each request has a line; without it, those slower than
    `log_slow_ms`, unless that is 0. `tracing`: spans go to OpenTelemetry's exporter. `instrumentation`: details of each
    forward pass are written.
    """

    log_json: bool = False
    log_requests: bool = False
    log_slow_ms: float = 0.0
    tracing: bool = False
    instrumentation: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Telemetry":
        """Read the settings. A stock tritonserver checks no value before, so a wrong one counts as not set."""
        return cls(
            is_true(environment.get(LOG_JSON, "")),
            is_true(environment.get(LOG_REQUESTS, environment.get(LOG_JSON, ""))),
            number(environment.get(LOG_SLOW_MS, "")),
            is_true(environment.get(TRACING, "")),
            is_true(environment.get(INSTRUMENTATION, "")),
        )

    def variables(self) -> dict[str, str]:
        """Return the environment variables that `of` reads.

        >>> Telemetry.of(Telemetry(log_json=True, log_slow_ms=2.5).variables())
        Telemetry(log_json=True, log_requests=False, log_slow_ms=2.5, tracing=False, instrumentation=False)
        """
        return {
            LOG_JSON: str(self.log_json),
            LOG_REQUESTS: str(self.log_requests),
            LOG_SLOW_MS: str(self.log_slow_ms),
            TRACING: str(self.tracing),
            INSTRUMENTATION: str(self.instrumentation),
        }


def is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "t", "yes", "y", "on")


def number(text: str) -> float:
    """
    >>> number("2.5"), number("many"), number("nan")
    (2.5, 0.0, 0.0)
    """
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value < float("inf") else 0.0


OPTIONS = Telemetry.of(os.environ)
