"""Secrets in command lines, which every user of the machine may read in /proc/PID/cmdline."""

import ctypes
import os
from collections.abc import Collection
from pathlib import Path

# Fields of /proc/PID/stat, counted from the state.
ARG_START, ARG_END = 45, 46


def blank(flags: Collection[str]) -> None:
    """Overwrite the values of `flags` in this process's command line; `ps` shows asterisks from then on."""
    fields = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    arguments = ctypes.string_at(start, end - start).split(b"\0")
    place, is_value = start, False
    for argument in arguments:
        name, equals, _ = argument.partition(b"=")
        is_flag = name.decode(errors="replace") in flags
        shown = len(name + equals) if is_flag and equals else 0
        if is_value or shown:
            ctypes.memset(place + shown, ord("*"), len(argument) - shown)
        place, is_value = place + len(argument) + 1, is_flag and not equals


def is_visible(pid: int, text: str) -> bool:
    """True if every user can read `text` in the process's command line."""
    return text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
