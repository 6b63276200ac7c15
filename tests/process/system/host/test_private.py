"""Nothing is loaded, connected to or unpickled from a place that others can write."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs
import pytest

from sie_triton.system.host.private import private_directory
from sie_triton.system.native import loading
from sie_triton.system.native.builds import MUVERA
from sie_triton.system.processes import fork_server

OTHER = 65534  # another user of the machine
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def test_missing_directories_are_created_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        made = private_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (made, made.parent)] == [0o700, 0o700]


def test_a_directory_of_this_user_is_taken_as_it_is(tmp_path):
    tmp_path.chmod(0o755)
    assert private_directory(tmp_path) == tmp_path
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_directory_writable_by_others_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match="can be written by other users"):
        private_directory(tmp_path)


def test_a_directory_below_a_world_writable_one_is_refused_unless_sticky(tmp_path):
    (tmp_path / "below").mkdir()
    tmp_path.chmod(0o1777)
    assert private_directory(tmp_path / "below")
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        private_directory(tmp_path / "below")
    with pytest.raises(PermissionError, match=str(tmp_path)):
        private_directory(tmp_path / "missing")


def test_volumes_that_are_said_to_be_out_of_reach_are_taken(tmp_path, monkeypatch):
    """Kubernetes makes the volumes of a Pod writable for everybody."""
    monkeypatch.setenv("SIE_TRUSTED_VOLUMES", f"/tmp,{tmp_path}")
    (tmp_path / "below").mkdir()
    tmp_path.chmod(0o2777)
    assert private_directory(tmp_path) == tmp_path
    assert private_directory(tmp_path / "below" / "made")
    (tmp_path / "below").chmod(0o777)
    with pytest.raises(PermissionError, match="below can be written by other users"):
        private_directory(tmp_path / "below" / "made")


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is not a directory"):
        private_directory(tmp_path / "file")


def test_a_link_of_this_user_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert private_directory(tmp_path / "link" / "x") == (tmp_path / "real" / "x").resolve()


@as_root
def test_a_directory_or_link_of_another_user_is_refused(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", OTHER, OTHER)
    (tmp_path / "ours").mkdir()
    (tmp_path / "link").symlink_to("ours")
    os.lchown(tmp_path / "link", OTHER, OTHER)
    for path in (tmp_path / "theirs", tmp_path / "theirs" / "x", tmp_path / "link", tmp_path / "link" / "x"):
        with pytest.raises(PermissionError, match=f"belongs to user {OTHER}"):
            private_directory(path)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """The temporary folder, where another user made our directory first; HOME cannot be written."""
    squatted = tmp_path / f"sie-triton-{os.getuid()}"
    squatted.mkdir()
    squatted.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_: Path("/proc/nowhere"))
    loading._load.cache_clear()
    yield squatted
    loading._load.cache_clear()


def test_no_library_is_loaded_from_a_place_others_can_write(shared, monkeypatch):
    loaded = []
    monkeypatch.setattr(loading.ctypes, "CDLL", loaded.append)
    (shared / MUVERA.file_name(loading.this_processor())).write_bytes(b"theirs")
    assert loading.library(MUVERA) is None
    assert loaded == []


STOCK = """
import sys, types
sys.modules["triton_python_backend_utils"] = types.ModuleType("stub")
from sie_triton.contract.spec import ModelSpec
from sie_triton.pipeline.stages.triton import _status_directory
print(_status_directory(ModelSpec("m", "", "sentence_transformer", {"dense": 64}, 512, 512)))
"""


def stock_directory(folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "XDG_CACHE_HOME": str(home)}
    return subprocess.run([sys.executable, "-c", STOCK], env=environment, capture_output=True, text=True, check=False)


def test_a_stock_server_uses_a_private_directory_of_its_user(tmp_path, shared):
    (tmp_path / "home").mkdir()
    found = Path(stock_directory(tmp_path / "home", tmp_path / "home").stdout.strip())
    assert found == tmp_path / "home" / f"sie-triton-{os.getuid()}" / str(os.getpid())
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    instead = stock_directory(tmp_path, tmp_path / "home").stdout.strip()
    assert instead == str(tmp_path / "home" / "sie-triton" / str(os.getpid()))


def test_a_stock_server_without_a_private_directory_fails_with_the_reason(tmp_path, shared):
    failed = stock_directory(tmp_path, Path("/proc/nowhere"))
    assert failed.returncode
    assert f"{shared} can be written by other users" in failed.stderr


def test_a_fork_server_in_a_directory_writable_by_others_is_not_used(tmp_path):
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(tmp_path / fork_server.SOCKET))
        theirs.listen()
        theirs.settimeout(0.2)
        tmp_path.chmod(0o777)
        assert fork_server.fork(tmp_path, [0]) is None
        with pytest.raises(TimeoutError):
            theirs.accept()


@as_root
def test_a_fork_server_of_another_user_is_not_used(tmp_path):
    """Only the kernel knows which user listens; checking the directory alone was not enough."""
    answering = f"""
import os, socket
os.setuid({OTHER})
listener = socket.socket(socket.AF_UNIX)
listener.bind("fork_server.sock")
listener.listen()
print("listening", flush=True)
connection, _ = listener.accept()
print(connection.recv(9))
connection.send(b"1")
"""
    tmp_path.chmod(0o777)
    command = [sys.executable, "-c", answering]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        tmp_path.chmod(0o700)
        assert fork_server.fork(tmp_path, [0]) is None
        assert "fork" not in process.stdout.read()
