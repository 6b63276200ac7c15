"""Limit of open files and connections of a process."""

import resource

# Enough for tens of thousands of connections, and low enough for programs that iterate over all possible descriptors.
MAX_DESCRIPTORS = 65_536


def raise_limit() -> None:
    """Raise the descriptor limit of this process and its children to the system's hard limit, up to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
