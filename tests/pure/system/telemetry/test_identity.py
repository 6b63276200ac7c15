"""The identity that clients send: ids are bounded, and a malformed trace context counts as none."""

import pytest

from sie_triton.system.telemetry.identity import MAX_ID, Trace, identity, trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "header",
    [
        "",
        TRACE,
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01extra",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_malformed_trace_contexts(header):
    assert trace_context(header) is None
    assert Trace.unrecorded(header) == Trace()


def test_a_later_version_may_have_more_fields():
    assert trace_context(f"01-{TRACE}-{SPAN}-01-more") == (TRACE, SPAN, True)


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_the_lowest_flag_says_whether_the_client_records(flags, is_sampled):
    assert trace_context(f"00-{TRACE}-{SPAN}-{flags}").is_sampled == is_sampled


@pytest.mark.parametrize("trace", [Trace(TRACE), Trace(TRACE, SPAN), Trace(TRACE, SPAN, SPAN)])
def test_the_next_process_understands_a_trace_whether_it_is_recorded_or_not(trace):
    context = trace_context(trace.traceparent)
    assert context.trace_id == TRACE
    assert context.is_sampled == trace.is_recorded
    assert Trace.parse(str(trace)) == trace


def test_ids_are_cut():
    assert identity({"X-Request-ID": "x" * 1000, "other": 1}) == {"x-request-id": "x" * MAX_ID}
