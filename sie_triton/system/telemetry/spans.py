"""The spans of this process, or None: nothing of OpenTelemetry is imported while tracing is off."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from time import monotonic_ns
from typing import TYPE_CHECKING

from sie_triton.errors import SettingsError
from sie_triton.system.telemetry.identity import Trace
from sie_triton.system.telemetry.options import OPTIONS, Telemetry

if TYPE_CHECKING:
    from sie_triton.system.telemetry.tracing import Attributes, Spans


@cache
def spans() -> "Spans | None":
    """Return the spans of this process, made with the first call; None while tracing is off.

    A process that will be forked must not call it: an exporter has threads.
    """
    if not OPTIONS.tracing:
        return None
    from sie_triton.system.telemetry.tracing import spans_of

    return spans_of(os.environ)


def check_tracing(options: Telemetry, environment: Mapping[str, str]) -> Iterator[str]:
    """Give the reason why traces cannot be sent, if they are wanted."""
    if not options.tracing:
        return
    try:
        from sie_triton.system.telemetry.tracing import DEFAULTS, exporter_of

        exporter_of({**DEFAULTS, **environment})
    except ModuleNotFoundError as exc:
        yield f"SIE_TRACING_ENABLED needs a package that is missing, {exc.name}: pip install 'sie-triton[tracing]'"
    except SettingsError as exc:
        yield str(exc)


def close_spans() -> None:
    """Export the spans that wait, at the end of a process."""
    if tracing := spans():
        tracing.close()


def recorded(trace: str) -> "tuple[Spans, Trace] | None":
    """Return the spans of this process and a request's trace, if it is recorded."""
    if (tracing := spans()) is None:
        return None
    parsed = Trace.parse(trace)
    return (tracing, parsed) if parsed.is_recorded else None


@contextmanager
def event(name: str, attributes: "Attributes") -> Iterator[None]:
    """Record the work inside the context in a trace of its own, with the error that it raises."""
    tracing, started, error = spans(), monotonic_ns(), ""
    try:
        yield
    except BaseException as exc:
        error = f"{type(exc).__name__}: {exc}"
        raise
    finally:
        if tracing:
            tracing.event(name, started, monotonic_ns(), attributes, error)
