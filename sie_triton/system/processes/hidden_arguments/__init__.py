"""Starts a program with arguments that other users cannot read.

Every user may read /proc/PID/cmdline, but only the same user /proc/PID/environ. So the kernel gets the hidden arguments
as environment variables, and placeholders as arguments. The program is stopped before its first instruction (ptrace),
its `argv` is pointed at the hidden values, and it continues: they were never in the command line.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import IO, Any

VARIABLE = "SIE_HIDDEN_ARGUMENT_"

PTRACE_TRACEME, PTRACE_DETACH = 0, 17
# Fields of /proc/PID/stat, counted from the state.
START_STACK, ARG_START, ARG_END = 25, 45, 46

POINTER = Struct("=Q")

LIBC = ctypes.CDLL(None)


def start(
    command: Sequence[str],
    hidden: Sequence[str],
    environment: Mapping[str, str],
    before: Callable[[], None],
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start `command` with the additional arguments `hidden`. `before` runs in the child; `options` are Popen's.

    Raise OSError, without starting anything, if this system does not allow tracing a child.
    """
    names = [f"{VARIABLE}{index}" for index in range(len(hidden))]
    variables = {**environment, **dict(zip(names, hidden, strict=True))}
    process = _stopped([*command, *["--hidden"] * len(hidden)], variables, before, options)
    try:
        with open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as memory:
            _point(memory, _stat(process.pid)[START_STACK], names)
    except BaseException:
        process.kill()
        _ptrace(PTRACE_DETACH, process.pid)
        process.wait()
        raise
    _ptrace(PTRACE_DETACH, process.pid)
    return process


def blank(flags: Collection[str]) -> None:
    """Overwrite the values of `flags` in this process's command line; `ps` shows asterisks from then on."""
    start, end = (_stat(os.getpid())[field] for field in (ARG_START, ARG_END))
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


def _stopped(
    command: Sequence[str], environment: Mapping[str, str], before: Callable[[], None], options: Mapping[str, Any]
) -> subprocess.Popen[bytes]:
    """Start a process that stops before its first instruction, traced by this thread."""

    def traced() -> None:
        before()
        if _ptrace(PTRACE_TRACEME, 0):
            raise OSError("ptrace is not allowed")

    try:
        process = subprocess.Popen(command, env=environment, preexec_fn=traced, **options)
    except subprocess.SubprocessError as exc:
        raise OSError("a child cannot be traced here") from exc
    os.waitpid(process.pid, os.WUNTRACED)
    return process


def _ptrace(request: int, pid: int) -> int:
    return int(LIBC.ptrace(request, pid, None, None))


def _point(memory: IO[bytes], stack: int, names: Sequence[str]) -> None:
    """Point the last entries of argv at the values of the variables `names`.

    The stack of a new program holds argc, the pointers argv, 0, the pointers envp, 0.
    """
    argc = _pointer(memory, stack)
    argv = stack + POINTER.size
    envp = argv + (argc + 1) * POINTER.size
    first = argv + (argc - len(names)) * POINTER.size
    wanted = {f"{name}=".encode(): first + index * POINTER.size for index, name in enumerate(names)}
    while wanted:
        variable = _pointer(memory, envp)
        memory.seek(variable)
        text = memory.read(64)
        for name in [name for name in wanted if text.startswith(name)]:
            memory.seek(wanted.pop(name))
            memory.write(POINTER.pack(variable + len(name)))
        envp += POINTER.size


def _pointer(memory: IO[bytes], address: int) -> int:
    memory.seek(address)
    return int(POINTER.unpack(memory.read(POINTER.size))[0])


def _stat(pid: int) -> list[int]:
    """Return the fields of /proc/PID/stat, from the state, which has index 0."""
    _, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [0, *map(int, numbers)]
