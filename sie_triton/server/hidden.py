"""Starts a program with arguments that other users cannot read.

Everybody may read /proc/PID/cmdline, only the same user /proc/PID/environ. So the kernel is given the hidden
arguments as environment, and placeholders in their place. The program is stopped before its first instruction
(ptrace), its `argv` pointed at the hidden ones, and let go: they were never in the command line.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import IO, Any

VARIABLE = "SIE_HIDDEN_ARGUMENT_"
PLACEHOLDER = "--hidden"

PTRACE_TRACEME, PTRACE_DETACH = 0, 17
START_STACK = 25  # in /proc/PID/stat, counted from the state on

POINTER = Struct("=Q")


def start(
    command: Sequence[str],
    hidden: Sequence[str],
    environment: Mapping[str, str],
    before: Callable[[], None],
    **options: Any,
) -> subprocess.Popen[bytes]:
    """`command` with the arguments `hidden` after it; `before` runs in the child. `options` are those of Popen.

    OSError where this system lets nobody trace a child; nothing runs then.
    """
    names = [f"{VARIABLE}{index}" for index in range(len(hidden))]
    libc = ctypes.CDLL(None, use_errno=True)

    def trace() -> None:
        before()
        if libc.ptrace(PTRACE_TRACEME, 0, None, None):
            raise OSError(ctypes.get_errno(), "ptrace")

    try:
        process = subprocess.Popen(
            [*command, *[PLACEHOLDER] * len(hidden)],
            env={**environment, **dict(zip(names, hidden, strict=True))},
            preexec_fn=trace,
            **options,
        )
    except subprocess.SubprocessError as exc:
        raise OSError("a child cannot be traced here") from exc
    try:
        os.waitpid(process.pid, os.WUNTRACED)
        with open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as memory:
            _point(memory, _start_stack(process.pid), len(command), names)
    except BaseException:
        process.kill()
        raise
    finally:
        libc.ptrace(PTRACE_DETACH, process.pid, None, None)
    return process


def is_visible(pid: int, text: str) -> bool:
    """True where every user can read `text` in the process's command line."""
    return text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def _point(memory: IO[bytes], stack: int, first: int, names: Sequence[str]) -> None:
    """Let argv[first] and those after it be the values of the variables `names`.

    On the stack of a new program lie argc, the pointers argv, 0, the pointers envp, 0.
    """
    (argc,) = _pointers(memory, stack, 1)
    argv = stack + POINTER.size
    envp = argv + (argc + 1) * POINTER.size
    wanted = {f"{name}=".encode(): argv + (first + index) * POINTER.size for index, name in enumerate(names)}
    while wanted:
        (variable,) = _pointers(memory, envp, 1)
        memory.seek(variable)
        text = memory.read(64)
        for name in [name for name in wanted if text.startswith(name)]:
            memory.seek(wanted.pop(name))
            memory.write(POINTER.pack(variable + len(name)))
        envp += POINTER.size


def _pointers(memory: IO[bytes], address: int, count: int) -> Sequence[int]:
    memory.seek(address)
    return [POINTER.unpack(memory.read(POINTER.size))[0] for _ in range(count)]


def _start_stack(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[START_STACK])
