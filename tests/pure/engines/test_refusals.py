"""Errors of endpoints of remote models."""

import pytest

from sie_triton.engines.remote.limits import LIMITS
from sie_triton.engines.remote.refusals import retry_s


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("Thu, 01 Jan 1970 00:00:00 +" + "9" * 30, 1),
        ("1 Jan 99999 0:0:0 GMT", 1),
        ("Fri, 31 Dec 9999 23:59:59 -9999", 1),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LIMITS.max_retry_s),
        ("1e999", LIMITS.max_retry_s),
        ("nan", 1),
        ("-1", 1),
    ],
)
def test_any_header_gives_a_time_within_bounds(header, seconds):
    assert retry_s(header) == seconds
