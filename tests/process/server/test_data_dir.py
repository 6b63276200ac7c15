"""The data directory of a server, and errors of files and limits during its start: one line each."""

import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sie_triton.errors import ServerError
from sie_triton.server import data_dir, serve
from sie_triton.server.data_dir import clean_after_predecessor, end_leftovers, lock, mark, remember
from sie_triton.server.find_triton import ascii_path
from sie_triton.server.preflight import check_space, explain
from sie_triton.settings import read_settings
from sie_triton.system.processes import signals
from sie_triton.system.processes.pids import is_alive
from tests.support.limits import full_disk


@pytest.mark.parametrize(
    ("own", "cpu_threads", "expected"), [(None, 0, "3"), (None, 5, "5"), ("1", 5, "1")], ids=["quota", "setting", "own"]
)
def test_libraries_start_as_many_threads_as_a_server_may_use(monkeypatch, tmp_path, own, cpu_threads, expected):
    monkeypatch.setattr(data_dir, "num_processors", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    settings = read_settings(data_dir=tmp_path, device="cpu", cpu_threads=cpu_threads)
    assert data_dir.environment_of(settings)["OMP_NUM_THREADS"] == expected


@pytest.mark.parametrize("name", ["a b", "it's", "$HOME", 'a"b', "ünï", "a;b", "a:b"])
def test_a_path_with_special_characters_gets_a_plain_alias(tmp_path, name):
    (tmp_path / name).mkdir()
    with ascii_path(tmp_path / name) as path:
        assert str(path).isascii()
        assert subprocess.check_output(f"cd {path} && pwd -P", shell=True, text=True).strip() == str(tmp_path / name)
    assert not path.exists()
    assert (tmp_path / name).exists()


def test_a_plain_path_is_taken_as_it_is(tmp_path):
    with ascii_path(tmp_path) as path:
        assert path == tmp_path


def test_a_data_directory_that_others_can_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(ServerError, match=r"--data-dir=.* can be written by other users; run chmod go-w on it; choose"):
        lock(tmp_path)


def test_a_data_directory_belongs_to_one_server(tmp_path):
    with lock(tmp_path), pytest.raises(ServerError, match=r"another server uses .*--data-dir"):
        lock(tmp_path)


@pytest.mark.parametrize("content", [(), ("serve.lock", "logs"), ("lost+found",)])
def test_a_data_directory_that_others_can_enter_is_closed(tmp_path, content):
    tmp_path.chmod(0o755)
    for name in content:
        (tmp_path / name).touch()
    lock(tmp_path).close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_data_directory_open_to_others_with_other_files_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ServerError, match=r"holds other files and is accessible to other users; chmod go-rwx it"):
        lock(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_data_directory_that_cannot_be_made_is_one_line():
    message = "--data-dir=/proc/nowhere cannot be used: /proc/nowhere: No such file or directory; choose another one"
    with pytest.raises(ServerError, match=f"^{message}$"):
        lock(Path("/proc/nowhere"))


@pytest.mark.parametrize(
    ("error_number", "shows_room"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)]
)
def test_an_error_of_a_file_names_its_path_and_the_room_that_is_left(tmp_path, error_number, shows_room):
    text = os.strerror(error_number)
    gone = str(tmp_path / "gone" / "file")
    for path, named in ((gone, gone), (os.fsencode(gone), gone), (None, tmp_path), (7, tmp_path)):
        line = explain(OSError(error_number, text, path), tmp_path)
        assert line.startswith(f"{named}: {text}")
        assert bool(re.search(r"\d+ MB and \d+ inodes", line)) == shows_room
    assert str(tmp_path) not in explain(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), tmp_path)


def test_shared_memory_without_inodes_is_noticed(tmp_path, monkeypatch):
    room = os.statvfs("/dev/shm")
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_favail=5))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**40))
    assert [line.partition(" ")[0] for line in check_space(tmp_path, 2)] == ["/dev/shm"]
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    assert [*check_space(tmp_path, 2)] == []


def test_a_temporary_directory_that_cannot_be_written_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/tmp")
    assert [line.partition(" ")[0] for line in check_space(tmp_path, 0)] == ["/tmp"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), ServerError),
        (RuntimeError("can't start new thread"), ServerError),
        (MemoryError(), ServerError),
        (RuntimeError("a fault of ours"), RuntimeError),
    ],
)
def test_a_limit_that_is_reached_during_the_start_is_one_line(tmp_path, monkeypatch, error, raised):
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(serve, "_serve", fail)
    monkeypatch.setattr(signals, "ENDING", ())
    with pytest.raises(raised, match=str(error.args[-1]) if error.args else "memory") as caught:
        serve.serve(read_settings(data_dir=tmp_path / "data"), [])
    assert len(str(caught.value).splitlines()) == 1


def test_a_disk_that_takes_nothing_more_is_one_line(tmp_path):
    """The error of a write names no file."""
    serve = [sys.executable, "-m", "sie_triton.cli", "serve", f"--data-dir={tmp_path / 'data'}"]
    with full_disk():
        ended = subprocess.run(serve, capture_output=True, text=True, check=False, timeout=300)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("[transformers]")]
    assert (ended.returncode, lines) == (2, [f"error: {tmp_path / 'data'}: {os.strerror(errno.EFBIG)}"])


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4096, b"[" * 100_000, b"\xff" * 999, b"*", b"/", b"../*", b"s", b"sie_"]
)
def test_a_damaged_name_of_a_predecessors_memory_removes_nothing(tmp_path, content):
    kept = Path(f"/dev/shm/sie_{os.getpid()}_01234567_1")
    kept.touch()
    try:
        (tmp_path / "serve.lock").write_bytes(content)
        with lock(tmp_path) as held:
            assert clean_after_predecessor(held, tmp_path) == 0
        assert kept.exists()
    finally:
        kept.unlink()


def test_processes_and_files_of_a_predecessor_are_removed(tmp_path):
    """Children of this process, and processes of other directories, are left alone."""
    sleeping = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", sleeping],
            env={**os.environ, **mark(directory)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for directory in (tmp_path / "data", tmp_path / "other")
    ]
    ours, other = (int(process.stdout.readline()) for process in started)
    prefix = f"sie_{os.getpid()}_01234567_"
    region = Path(f"/dev/shm/{prefix}1")
    region.touch()
    try:
        with lock(tmp_path / "data") as held:
            remember(held, prefix)
        with lock(tmp_path / "data") as held:
            assert clean_after_predecessor(held, tmp_path / "data") == 1
            remember(held, "sie_1_89abcdef_")
        assert not region.exists()
        assert [is_alive(pid) for pid in (started[0].pid, ours, other)] == [True, False, True]
        assert end_leftovers(tmp_path / "data") == 0
    finally:
        region.unlink(missing_ok=True)
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
