"""The number of files and connections that a process may have open."""

import resource

# Enough for tens of thousands of connections; programs that go through all descriptors one by one stay quick.
MAX_DESCRIPTORS = 65_536


def raise_limit() -> None:
    """Allow this process, and those that it starts, as many descriptors as the system lets it, up to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
