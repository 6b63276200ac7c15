"""Free ports of the loopback address."""

import socket
from collections.abc import Collection
from contextlib import ExitStack


def free_ports(count: int, besides: Collection[int] = ()) -> list[int]:
    """Return `count` ports that no program uses now, and that are not among `besides`: others will use those."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            if (port := probe.getsockname()[1]) not in besides:
                found.append(port)
    return found
