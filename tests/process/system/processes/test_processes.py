"""Our processes from start to end, and processes that others recorded by pid."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from sie_triton.system.processes import pids
from sie_triton.system.processes.child import start
from sie_triton.system.processes.fork_server import Forked, fork, fork_server_ids
from sie_triton.system.processes.log import Log
from sie_triton.system.processes.pids import Process, ProcessId, children_by_parent, is_alive, is_stopped
from sie_triton.system.processes.supervisor import Companion
from tests.support.controller import stage, wait_for
from tests.support.limits import no_file_handle_left

SLEEPS = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
DIES_AT_ONCE = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]


# --- a child


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.usefixtures("nothing_is_left")
def test_a_started_child_is_watched_from_its_birth(signum):
    child = start(SLEEPS)
    assert not child.wait(0)
    os.kill(child.pid, signum)
    assert child.wait(60)
    assert child.status == -signum
    assert signum.name in child.describe_exit
    assert is_zombie(child.pid)  # its pid cannot be reused yet
    child.end()
    assert not psutil.pid_exists(child.pid)
    assert child.status == -signum
    child.kill()


@pytest.mark.usefixtures("nothing_is_left")
def test_a_child_that_dies_at_once_is_not_missed():
    child = start(DIES_AT_ONCE)
    wait_for(lambda: is_zombie(child.pid))
    assert child.wait(0)
    assert child.was_killed
    assert "memory" in child.describe_exit
    child.end()


@pytest.mark.usefixtures("nothing_is_left")
def test_a_stopped_child_is_seen_and_ended():
    child = start(SLEEPS)
    child.send(signal.SIGSTOP)
    wait_for(lambda: child.is_stopped)
    assert not child.wait(0)
    child.end(0.1)
    assert not child.is_stopped


@pytest.mark.usefixtures("nothing_is_left")
def test_descendants_end_with_a_child(tmp_path):
    program = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    child = start([sys.executable, "-c", program], log=tmp_path / "log")
    assert child.status == 0
    grandchild = int(child.log())
    assert is_alive(grandchild)
    child.end()
    wait_for(lambda: not is_alive(grandchild))


@pytest.mark.usefixtures("nothing_is_left")
def test_a_child_returns_only_its_part_of_the_log(tmp_path):
    log = tmp_path / "new" / "log"
    for word in ("one", "two"):
        child = start([sys.executable, "-c", f"print({word!r})"], log=log)
        child.end(5)
        assert child.log() == f"{word}\n"
    assert log.read_text() == "one\ntwo\n"
    assert log.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("nothing_is_left")
def test_a_child_is_ended_while_others_wait_for_it():
    child = start(SLEEPS)
    statuses: list[int | None] = []
    threads = [threading.Thread(target=lambda: statuses.append(child.status)) for _ in range(4)]
    for thread in threads:
        thread.start()
    child.end()
    for thread in threads:
        thread.join(5)
    assert statuses == [-signal.SIGKILL] * 4


@pytest.mark.usefixtures("nothing_is_left")
def test_a_child_that_cannot_be_started_leaves_nothing():
    with pytest.raises(FileNotFoundError):
        start(["/nowhere"])


@pytest.mark.usefixtures("nothing_is_left")
def test_a_child_that_cannot_be_held_does_not_run(monkeypatch):
    def fail(pid):
        raise OSError(errno.EMFILE, "no file handle")

    monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(OSError, match="no file handle"):
        start(SLEEPS)


def is_zombie(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# --- children of the fork server


SERVES = """
import gc, os, signal, time
def import_all():
    global collects_while_importing
    collects_while_importing = gc.isenabled()
def main(descriptors):
    order = os.read(descriptors[0], 99)
    if order == b"garbage":
        os._exit(collects_while_importing + 2 * gc.isenabled() + 4 * (gc.get_freeze_count() > 0))
    if order == b"raise":
        raise OSError("spoiled")
    if order.isdigit():
        os.kill(os.getpid(), int(order))
    os._exit(7 if order else 0)
"""


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory):
    """Its children follow their order: the signal to die of, "raise", or "exit"."""
    directory = tmp_path_factory.mktemp("fork-server")
    (directory / "obeying.py").write_text(SERVES)
    path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
    command = ["sie_triton.system.processes.fork_server", "obeying", str(directory)]
    with Companion("the fork server", command, Log(directory / "log"), {"PYTHONPATH": path}) as companion:
        companion.directory = directory
        wait_for(lambda: serves(companion))
        yield companion


def serves(fork_server) -> bool:
    return fork_server.pid in [each.pid for each in fork_server_ids(fork_server.directory)]


def forked(fork_server, order: bytes) -> Forked:
    theirs, ours = os.pipe()
    child = fork(fork_server.directory, [theirs])
    os.write(ours, order)
    os.close(theirs)
    os.close(ours)
    return child


@pytest.mark.parametrize(
    ("order", "status", "words"),
    [
        (b"9", -9, "by SIGKILL, as the system does when memory is short"),
        (b"11", -11, "by SIGSEGV"),
        (b"exit", 7, "with status 7"),
        (b"raise", 1, "with status 1"),
        (b"", 0, "with status 0"),
    ],
)
def test_the_exit_status_of_a_forked_child_is_known(fork_server, order, status, words):
    child = forked(fork_server, order)
    assert child.wait(60)
    assert (child.status, child.describe_exit, child.was_killed) == (status, words, status == -9)
    assert not psutil.pid_exists(child.pid)


def test_garbage_is_collected_in_children_but_not_during_imports_which_are_frozen(fork_server):
    child = forked(fork_server, b"garbage")
    assert child.wait(60)
    assert child.status == 2 + 4


def test_the_exit_status_of_a_child_is_unknown_without_its_fork_server(fork_server):
    child = forked(fork_server, b"19")  # it stops itself
    wait_for(lambda: child.is_stopped)
    before = fork_server.pid
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: fork_server.pid != before and serves(fork_server))
    assert not child.wait(0)  # children of a fork server that died go on
    child.end()
    assert child.status is None
    assert child.was_killed


def test_a_fork_server_outlives_all_that_it_forks(fork_server):
    """It keeps neither zombies nor descriptors of them."""
    me = psutil.Process(fork_server.pid)
    before = me.num_fds()
    children = [forked(fork_server, order) for order in (b"raise", b"9", b"exit", b"") for _ in range(10)]
    assert all(child.wait(60) for child in children)
    wait_for(lambda: me.children() == [] and me.num_fds() == before)
    assert fork_server.pid == me.pid


def test_a_forked_child_inherits_no_descriptors_of_its_siblings(fork_server):
    first, second = (forked(fork_server, b"19") for _ in range(2))
    wait_for(lambda: second.is_stopped and first.is_stopped)
    assert psutil.Process(second.pid).num_fds() <= psutil.Process(first.pid).num_fds()
    first.end()
    second.end()


def test_a_client_that_leaves_before_it_is_served_does_no_harm(fork_server):
    """The client sends its request while the fork server is suspended, and is gone when the server resumes."""
    fork_server_process = psutil.Process(fork_server.pid)
    fork_server_process.suspend()
    imports = "from pathlib import Path; from sie_triton.system.processes.fork_server import fork"
    program = f"{imports}; fork(Path({str(fork_server.directory)!r}), [0])"
    with subprocess.Popen([sys.executable, "-c", program]) as asking:
        time.sleep(1)
        asking.kill()
    fork_server_process.resume()
    child = forked(fork_server, b"exit")
    assert child.wait(60)
    assert child.status == 7


# --- a recorded pid


def test_a_reused_pid_is_left_alone(child):
    """The pid was reused after the process had ended."""
    written = ProcessId(child.pid, ProcessId.of(child.pid).started - 1)
    assert not written.is_alive
    written.send(signal.SIGKILL)
    time.sleep(0.1)
    assert child.poll() is None
    ProcessId.of(child.pid).send(signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL


def test_a_pid_reused_after_its_lookup_is_not_signalled(child, monkeypatch):
    """The pid is looked up, and belongs to another process a moment later."""
    written = ProcessId.of(child.pid)
    looked = []

    def stat(pid):
        looked.append(pid)
        return ["S", "1", *["0"] * 17, str(written.started + 1)]

    monkeypatch.setattr(pids, "_stat", stat)
    written.send(signal.SIGKILL)
    time.sleep(0.1)
    assert looked
    assert child.poll() is None


def test_a_signal_to_an_ended_process_reaches_no_other():
    with subprocess.Popen(["true"]) as process:
        written = ProcessId.of(process.pid)
        process.wait()
    written.send(signal.SIGKILL)
    assert not written.is_alive
    assert not written.is_stopped
    assert ProcessId.of(2**22 + 1) == ProcessId(2**22 + 1, 0)
    assert not ProcessId(2**22 + 1, 0).is_alive


@pytest.mark.parametrize("whose", ["stopped", "superseded", "drained", "fork_server"])
@pytest.mark.parametrize("controller", [{"superseded_s": -1.0}], indirect=True)
def test_the_controller_ends_no_process_that_reuses_a_recorded_pid(controller, child, whose):
    stranger = ProcessId(child.pid, ProcessId.of(child.pid).started - 1)
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(child.pid))
    if whose == "fork_server":
        controller._directory.mkdir(parents=True, exist_ok=True)
        (controller._directory / "fork_server.pid").write_text("{} {} ready".format(*stranger))
    elif whose == "drained":
        os.kill(child.pid, signal.SIGCONT)
        old = stage(controller, "a")
        old.has_worker(stranger)
        stage(controller, "a", os.getppid(), generation=1)
    else:
        left = stage(controller, "a", child.pid)
        left.record["started"] = stranger.started
        stage(controller, "a", generation=1)
    for _ in range(4):
        controller.tick()
    assert child.poll() is None


def test_a_stage_whose_pid_was_reused_is_dead(controller, control, child):
    """It is healed, although a process with that pid lives."""
    left = stage(controller, "a", child.pid)
    left.record["started"] -= 1
    controller.tick()
    wait_for(lambda: control.swapped == [("a-inference", False)])


# --- the processes of the system


def test_the_name_of_a_process_may_be_any_bytes():
    program = "open('/proc/self/comm', 'wb').write(b'\\xc3) Z 1'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert process.pid in children_by_parent()[os.getpid()]
        assert is_alive(process.pid)
        process.kill()


@pytest.mark.parametrize(("code", "is_left_out"), [(errno.EACCES, True), (errno.EPERM, True), (errno.EMFILE, False)])
def test_only_processes_that_may_not_be_read_are_left_out(child, monkeypatch, code, is_left_out):
    """Whoever cannot read /proc must not take a process for dead."""
    stat = pids._stat

    def hidden(pid):
        if pid == 1:
            raise OSError(code, os.strerror(code))
        return stat(pid)

    monkeypatch.setattr(pids, "_stat", hidden)
    with nullcontext() if is_left_out else pytest.raises(OSError, match="Too many open files"):
        assert child.pid in children_by_parent()[os.getpid()]


# --- a process that another process started


def test_a_process_is_waited_for_by_its_pidfd(child):
    process = Process(child.pid)
    assert not process.wait(0.01)
    child.kill()
    assert process.wait(5)
    process.send(signal.SIGKILL)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with pytest.raises(ProcessLookupError):
        Process(ended.pid)


def test_a_process_counts_as_alive_while_no_file_handle_is_left(child):
    """Else a door would give up all requests, and the controller replace all processes."""
    dead, found = ProcessId(child.pid, 1), ProcessId.of(child.pid)
    with no_file_handle_left():
        with pytest.raises(OSError, match="Too many open files"):
            Path("/proc/self/stat").read_text()
        answers = [is_alive(child.pid), found.is_alive, dead.is_alive, is_stopped(child.pid), found.is_stopped]
    assert answers == [True, True, True, False, False]
    assert not dead.is_alive
