"""Limit the requests that go to Triton in one call, so that others do not wait long for it."""

# A joined call may always have so many requests.
MIN_REQUESTS = 2

# Weight of the last call in the time of a request.
WEIGHT = 0.2


def num_joined(call_s: float, request_s: float, max_requests: int) -> int:
    """Return how many requests a call may have: as many as take `call_s` seconds.

    `request_s` is the time of a call for each of its requests, 0 while it is unknown.

    >>> num_joined(0.1, 0.01, 64), num_joined(0.1, 0.5, 64), num_joined(0.1, 0.0, 64)
    (10, 2, 64)
    """
    if not request_s:
        return max_requests
    return max(MIN_REQUESTS, min(max_requests, int(min(call_s / request_s, max_requests))))


def smoothed(request_s: float, latest_s: float) -> float:
    """Return the time of a call for each of its requests, in seconds, from that before and that of the latest call.

    >>> smoothed(0.0, 0.3), round(smoothed(0.1, 0.2), 3)
    (0.3, 0.12)
    """
    return (1 - WEIGHT) * request_s + WEIGHT * latest_s if request_s else latest_s
