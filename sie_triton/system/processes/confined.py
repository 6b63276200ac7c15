"""Processes that read untrusted files. Each confines itself irrevocably, and can then only use open descriptors.

It cannot open, list or stat any file, so everything must be opened and imported before. Uses seccomp on Linux on
x86-64, which needs no privileges and works in unprivileged containers too.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from struct import pack

from sie_triton.system.host.container import num_processors

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
AUDIT_ARCH_X86_64 = 0xC000003E
X32_CALLS = 0x40000000

# System calls for computing, threads of one process and open files. All others fail with ENOSYS: paths of any kind,
# sockets, further programs and processes, signals to other processes, limits and privileges.
ALLOWED = {
    "read": 0,
    "write": 1,
    "close": 3,
    "fstat": 5,
    "lseek": 8,
    "mmap": 9,
    "mprotect": 10,
    "munmap": 11,
    "brk": 12,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "pread64": 17,
    "sched_yield": 24,
    "mremap": 25,
    "madvise": 28,
    "nanosleep": 35,
    "getpid": 39,
    "exit": 60,
    "uname": 63,
    "gettimeofday": 96,
    "sysinfo": 99,
    "sigaltstack": 131,
    "gettid": 186,
    "time": 201,
    "futex": 202,
    "sched_getaffinity": 204,
    "restart_syscall": 219,
    "fadvise64": 221,
    "clock_gettime": 228,
    "clock_nanosleep": 230,
    "exit_group": 231,
    "set_robust_list": 273,
    "getcpu": 309,
    "getrandom": 318,
    "membarrier": 324,
    "rseq": 334,
}
# System calls that fail with EACCES: Python then treats the path as absent.
DENIED = {
    "open": 2,
    "stat": 4,
    "lstat": 6,
    "access": 21,
    "readlink": 89,
    "openat": 257,
    "newfstatat": 262,
    "readlinkat": 267,
    "faccessat": 269,
    "statx": 332,
    "faccessat2": 439,
}
CLONE = 56
CLONE_THREAD = 0x10000

# Instructions of a filter: load a word; jump if equal, if at least, if any bit is set; return.
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, DENY, ABSENT = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EACCES, 0x00050000 | errno.ENOSYS
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16

LIBC = ctypes.CDLL(None, use_errno=True)


def start(
    module: str, *arguments: object, descriptors: Collection[int] = (), bufsize: int = -1
) -> "subprocess.Popen[bytes]":
    """Start `python -m module arguments`, which confines itself, with pipes to its standard input and output."""
    inherited = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TZ")  # the other variables may hold secrets
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={name: os.environ[name] for name in inherited if name in os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(descriptors),
        bufsize=bufsize,
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine(*, memory_bytes: int, file_bytes: int, seconds: int | None) -> None:
    """Restrict this process to the system calls in ALLOWED for the rest of its life.

    The process may allocate `memory_bytes` more than it has, and let a file grow to `file_bytes`. It ends after
    `seconds`, unless they are None, or with its parent. No other process may trace it. Raise OSError if the system does
    not support this; the caller must then stop.
    """
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, f"no filter of system calls for {platform.machine()}")
    limit_resources(memory_bytes=memory_bytes, file_bytes=file_bytes, seconds=seconds)
    code = b"".join(_filter())
    program = _Program(len(code) // 8, code)
    die_with_parent()
    _prctl(PR_SET_DUMPABLE, 0)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def limit_resources(*, memory_bytes: int, file_bytes: int, seconds: int | None) -> None:
    """Limit what this process may use for the rest of its life; see `confine`."""
    _limit(resource.RLIMIT_AS, _address_space() + memory_bytes)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    if seconds is None:
        return
    # The code can ignore SIGALRM, but not the limit of processor time.
    _limit(resource.RLIMIT_CPU, seconds * num_processors())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def die_with_parent() -> None:
    """Have the kernel kill this process once the thread that started it ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_first() -> None:
    """Ask the kernel to kill this process first when memory is short, if possible."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _filter() -> Iterator[bytes]:
    yield _instruction(LOAD, ARCHITECTURE)
    yield _instruction(EQUAL, AUDIT_ARCH_X86_64, met=1)
    yield _instruction(RETURN, KILL)
    yield _instruction(LOAD, NUMBER)
    yield from _if(AT_LEAST, X32_CALLS, KILL)
    for number in ALLOWED.values():
        yield from _if(EQUAL, number, ALLOW)
    for number in DENIED.values():
        yield from _if(EQUAL, number, DENY)
    yield _instruction(EQUAL, CLONE, missed=3)
    yield _instruction(LOAD, FIRST_ARGUMENT)
    yield from _if(ANY_BIT, CLONE_THREAD, ALLOW)
    yield _instruction(RETURN, ABSENT)


def _if(test: int, value: int, verdict: int) -> Iterator[bytes]:
    yield _instruction(test, value, missed=1)
    yield _instruction(RETURN, verdict)


def _instruction(code: int, value: int, *, met: int = 0, missed: int = 0) -> bytes:
    """Encode an instruction. `met`, `missed`: number of instructions to skip if the test is true or false."""
    return pack("=HBBI", code, met, missed, value)


def _prctl(option: int, *arguments: object) -> None:
    values = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    values += [ctypes.c_ulong(0)] * (4 - len(values))
    if LIBC.prctl(option, *values) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
