"""Stubs that are forked, with a stub at its smallest: a program that starts Python as Triton's does."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sie_triton.controller.memory import Shares, processes
from sie_triton.server.find_triton import Triton, find_triton, stub_environment
from sie_triton.server.preflight import shared_libpython
from sie_triton.server.stub_forking.stubs import DECLINED, REAL_STUB, STUB, StubForkServer, forked
from sie_triton.settings import read_settings
from sie_triton.system.host.process_memory import private_bytes
from sie_triton.system.native import builds
from sie_triton.system.native.builds import compile_program
from sie_triton.system.processes.fork_server import fork
from sie_triton.system.processes.pids import Process, is_alive, parent_of, represented_pid
from tests.support.controller import wait_for

FAKE_STUB = Path(__file__).with_name("fake_stub.c")
LIBPYTHON = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so*"

LIVES = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
GROWS = "import os; print(os.getpid(), flush=True); input(); x = b'x' * {}; print(flush=True); input()"
GROWTH = 50_000_000
MAX_FILES = 1000
ENDS = "import os; print(os.getpid(), flush=True); {}"
TELLS = """
import gc, json, os, resource, signal, sys, threading
def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False

print(json.dumps({
    "pid": os.getpid(),
    "is_prepared": "sie_triton.pipeline.stages.inference" in sys.modules and gc.get_freeze_count() > 0,
    "open": sum(map(is_open, range(3, 1000))),
    "parent": os.getppid(), "cwd": os.getcwd(), "path": sys.path, "argv": sys.argv, "flags": list(sys.flags),
    "environment": {name: os.environ.get(name) for name in ("LD_PRELOAD", "PATH", "LD_LIBRARY_PATH")},
    "files": resource.getrlimit(resource.RLIMIT_NOFILE), "threads": len(os.listdir("/proc/self/task")),
    "encoding": sys.getfilesystemencoding(), "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
}))
"""
OWN = ("pid", "is_prepared", "open")


@pytest.fixture(scope="module", autouse=True)
def few_files() -> Iterator[None]:
    """Set a low limit on open files, which the fork server raises for itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory, stub: Path) -> Iterator[Path]:
    """A Python backend whose stubs are forked."""
    with fork_server(tmp_path_factory.mktemp("server"), stub) as (directory, _):
        yield directory


def built(directory: Path, *options: str) -> Path:
    assert compile_program([FAKE_STUB, libpython()], directory / STUB, *options)
    return directory / STUB


def libpython() -> Path:
    """Path of the shared library; Debian's own package has only the one with the full version number."""
    directory = shared_libpython()
    assert directory is not None
    return min(directory.glob(LIBPYTHON))


@contextmanager
def fork_server(root: Path, stub: Path, said: list[str] | None = None) -> Iterator[tuple[Path, StubForkServer]]:
    triton, companion = prepared(root, stub, said)
    assert companion is not None
    with companion:
        yield triton.backend_directory / "python", companion


def prepared(
    root: Path, stub: Path, said: list[str] | None = None, **given: Any
) -> tuple[Triton, StubForkServer | None]:
    source = root / "backends" / "python"
    source.mkdir(parents=True)
    (source / STUB).symlink_to(stub)
    utils = find_triton(None, root / "found").backend_directory / "python" / "triton_python_backend_utils.py"
    (source / utils.name).symlink_to(utils)
    triton = Triton(Path("tritonserver"), source.parent, stub_environment(), embedded=True)
    return forked(triton, read_settings(data_dir=root / "data", **given), (said if said is not None else []).append)


def run(stub: Path, program: str, **options: Any) -> "subprocess.Popen[str]":
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([str(stub), program], env=stub_environment(), **{**pipes, **options})


def told(stub: Path, **options: Any) -> dict[str, Any]:
    with run(stub, TELLS, **options) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    return dict(json.loads(output))


def without_own(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name not in OWN}


@contextmanager
def living(backend: Path) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """Return a stand-in and the stub that it represents."""
    with run(backend / STUB, LIVES) as stand_in:
        assert stand_in.stdout is not None
        try:
            yield stand_in, int(stand_in.stdout.readline())
        finally:
            stand_in.kill()


def test_a_forked_stub_is_like_one_that_is_started(backend, stub, tmp_path):
    started, of_fork_server = (told(each, cwd=tmp_path) for each in (stub, backend / STUB))
    assert not started["is_prepared"]
    assert of_fork_server["is_prepared"]
    assert (started["open"], of_fork_server["open"]) == (0, 1)  # the leash
    assert without_own(of_fork_server) == without_own(started)
    assert of_fork_server["parent"] == os.getpid()


def test_the_pid_that_a_stand_in_represents_is_known(backend):
    with living(backend) as (stand_in, pid):
        assert pid != stand_in.pid
        assert represented_pid(stand_in.pid) == pid
        assert processes(stand_in.pid) == [stand_in.pid, pid]
        assert parent_of(pid) != os.getpid()
    assert represented_pid(stand_in.pid) is None
    assert represented_pid(os.getpid()) is None


def test_a_forked_stub_counts_its_own_memory_and_later_growth(backend):
    shares = Shares(3600.0)
    grows = run(backend / STUB, GROWS.format(GROWTH), stdin=subprocess.PIPE)
    with living(backend), living(backend), grows as stand_in:
        assert stand_in.stdin is not None
        assert stand_in.stdout is not None
        pid = int(stand_in.stdout.readline())
        at_first = shares(pid).total
        assert 0 < at_first < private_bytes(pid) / 2
        stand_in.stdin.write("\n")
        stand_in.stdin.flush()
        stand_in.stdout.readline()
        assert 0.9 * GROWTH < shares(pid).total - at_first < 1.1 * GROWTH
        stand_in.kill()


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("raise SystemExit(9)", 9), ("os.kill(os.getpid(), 9)", -9), ("os.abort()", -signal.SIGABRT)],
)
def test_a_stand_in_ends_as_its_stub(backend, end, status):
    with run(backend / STUB, ENDS.format(end)) as stand_in:
        assert int(stand_in.communicate()[0]) != stand_in.pid
    assert stand_in.returncode == status


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_stub_ends_with_its_stand_in(backend, is_stopped):
    with living(backend) as (stand_in, pid):
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        stub = Process(pid)
        for signum in (signal.SIGINT, signal.SIGTERM):
            stand_in.send_signal(signum)  # a stub ignores these
        assert not stub.wait(0.1)
        stand_in.kill()
        assert stub.wait(5)


def test_stub_and_stand_in_end_with_tritonserver(backend):
    script = f'"{backend / STUB}" "{LIVES}" & wait'
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(["sh", "-c", script], env=stub_environment(), **pipes) as tritonserver:
        assert tritonserver.stdout is not None
        pid = int(tritonserver.stdout.readline())
        stub = Process(pid)
        tritonserver.kill()
        assert stub.wait(5)
        assert tritonserver.stdout.read() == ""  # no process holds the other end


def test_stubs_survive_their_fork_server_and_new_stubs_start_directly(tmp_path, stub):
    with fork_server(tmp_path, stub) as (backend, companion), living(backend) as (stand_in, pid):
        companion._supervisor._closing.set()
        os.kill(companion.pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(companion.pid))
        assert parent_of(pid) != companion.pid
        with living(backend) as (other, its_pid):
            assert its_pid == other.pid
        assert is_alive(pid)
        held = Process(pid)
        stand_in.kill()
        assert held.wait(5)


def test_a_stopped_fork_server_that_is_killed_delays_no_stub(tmp_path, stub):
    with fork_server(tmp_path, stub) as (backend, companion):
        os.kill(companion.pid, signal.SIGSTOP)
        with run(backend / STUB, LIVES) as stand_in:
            assert stand_in.stdout is not None
            os.kill(companion.pid, signal.SIGKILL)
            assert int(stand_in.stdout.readline()) == stand_in.pid
            stand_in.kill()


def test_a_stub_of_another_release(tmp_path):
    stub = built(tmp_path, "-DPYTHON_CONFIG")
    with fork_server(tmp_path, stub) as (backend, _):
        started, of_fork_server = told(stub, cwd=tmp_path), told(backend / STUB, cwd=tmp_path)
    assert of_fork_server["is_prepared"]
    assert without_own(of_fork_server) == without_own(started)


def test_a_stub_with_another_python_configuration_is_not_forked(tmp_path):
    with fork_server(tmp_path, built(tmp_path, "-DDEV_MODE")) as (backend, _), run(backend / STUB, TELLS) as process:
        output, errors = process.communicate()
    assert process.returncode == 0
    assert json.loads(output)["pid"] == process.pid
    assert not json.loads(output)["is_prepared"]
    assert errors.startswith("stubs are not forked: this stub needs another Python configuration than")


def test_a_stub_does_nothing_before_its_stand_in_holds_it(backend, tmp_path):
    """This process is the stand-in here."""
    arguments, output, (leash, its_end) = os.pipe(), os.pipe(), socket.socketpair()
    os.write(arguments[1], "\0".join([str(os.getpid()), "stub", ENDS.format(""), ""]).encode())
    directory = os.open(tmp_path, os.O_PATH)
    child = fork(backend, [arguments[0], 0, output[1], 2, directory, its_end.fileno()])
    for descriptor in (*arguments, output[1], directory, its_end.detach()):
        os.close(descriptor)
    assert not child.wait(0.3)
    leash.send(b"!")
    with open(output[0]) as file:
        assert file.read().strip() == str(child.pid)
    assert child.wait(5)
    assert child.status == 0
    leash.close()


def test_a_child_that_cannot_replace_its_stand_in_exits(backend):
    child = fork(backend, [0])  # what it needs is missing
    assert child.wait(5)
    assert child.status == DECLINED


@pytest.mark.parametrize(
    ("program", "has_python", "why"),
    [
        ("return 3;", True, "the stub starts Python in an unknown way"),
        ("return 3;", False, "the stub fork server ended with status 3; the log says more: {log}"),
        ("return *(volatile int *)0;", False, "the stub fork server ended by SIGSEGV; the log says more: {log}"),
    ],
)
def test_stubs_that_cannot_be_forked_are_reported_once(tmp_path, program, has_python, why):
    (tmp_path / "stub.c").write_text(f"int main(void) {{ {program} }}")
    libraries = ["-Wl,--no-as-needed", str(libpython())] if has_python else []
    assert compile_program([tmp_path / "stub.c"], tmp_path / STUB, *libraries)
    said: list[str] = []
    with fork_server(tmp_path, tmp_path / STUB, said) as (backend, companion):
        wait_for(lambda: said)
        with run(backend / STUB, "") as process:
            process.communicate()
        companion._thread.join(5)
        assert not companion._thread.is_alive()
    assert said == ["stubs are not forked: " + why.format(log=companion.log.path)]


def test_stubs_are_not_forked_if_disabled_or_unsupported(tmp_path, stub, monkeypatch):
    said: list[str] = []
    triton, companion = prepared(tmp_path / "unwanted", stub, said, fork_stubs=False)
    assert companion is None
    assert triton.backend_directory == tmp_path / "unwanted" / "backends"
    assert said == []
    monkeypatch.setattr(builds, "COMPILERS", ())
    triton, companion = prepared(tmp_path / "no compiler", stub, said)
    assert companion is None
    assert triton.backend_directory == tmp_path / "no compiler" / "backends"
    assert len(said) == 1
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert prepared(tmp_path / "noexec", stub, said)[1] is None
    assert len(said) == 2
    assert not (tmp_path / "no compiler" / "data" / "stubs" / "python" / REAL_STUB).exists()
