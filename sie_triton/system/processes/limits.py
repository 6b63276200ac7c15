"""Limits of a child process and its log, and the limit of open files and connections of this process."""

import resource
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessLimits:
    """Times in seconds, sizes in bytes and counts for one child process and its log; tests give their own."""

    # A log on disk takes (1 + num_old_files) * max_file_bytes, 16 MiB. Within a window, a line may be repeated so
    # often, and all lines take so much. Longer lines are split.
    max_file_bytes: int = 4 * 1024**2
    num_old_files: int = 3
    window_s: float = 10.0
    max_repeats: int = 100
    max_window_bytes: int = 1024**2
    max_line_bytes: int = 16 * 1024
    tail_bytes: int = 64 * 1024  # kept in memory for messages about a child that has ended

    # Heartbeats: the polling interval of the parent, and the polls without one after which the child is lost; more
    # before the first, for the child's imports.
    beat_s: float = 1.0
    max_silent_polls: int = 30
    max_silent_polls_at_start: int = 150

    # A program that ran for `steady_s` is restarted at once, one that dies repeatedly after these pauses.
    steady_s: float = 5.0
    pauses_s: tuple[float, ...] = (1.0, 2.0, 4.0)


# Enough for tens of thousands of connections, and low enough for programs that iterate over all possible descriptors.
MAX_DESCRIPTORS = 65_536


def raise_limit() -> None:
    """Raise the descriptor limit of this process and its children to the system's hard limit, up to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
