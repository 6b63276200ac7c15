"""Messages between a stage and a worker in its own environment, and the fork server of such workers."""

import os
import shutil
import socket
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from sie_triton.errors import LoadError
from sie_triton.pipeline.worker.expected import RESIDENT_BYTES
from sie_triton.pipeline.worker.handle import WorkerHandle
from sie_triton.server.companions import fork_servers
from sie_triton.settings import read_settings
from sie_triton.system.processes.channel import LARGE_BYTES, Channel
from sie_triton.system.processes.fork_server import PID, WAITING, fork, fork_server_directory, fork_server_ids
from sie_triton.system.processes.log import Log
from sie_triton.system.processes.pids import parent_of
from sie_triton.system.processes.supervisor import Companion
from tests.process.system.processes.test_channel import same
from tests.support.controller import wait_for
from tests.support.environments import (
    ARRAYS,
    FAMILY,
    SITE_PACKAGES,
    SOURCE,
    declare,
    linked,
    loader_of,
    mapped,
    save_arrays,
    spec_of,
)
from tests.support.loading import load_adapter
from tests.support.models import save_frames

LIMITS = {"forward_timeout_s": 60, "load_timeout_s": 60}


# --- what crosses

ECHO = """
import socket, sys
from sie_triton.system.processes.channel import Channel
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
while True:
    channel.send(channel.recv())
"""

MESSAGES = [
    {"small": np.arange(12, dtype=np.int32), "outputs": frozenset({"dense"})},
    {"large": np.arange(4 * LARGE_BYTES, dtype=np.float32).reshape(-1, 128)},
    [np.zeros((0, 64), np.float32), np.zeros((), np.float64), np.float32(3), np.int64(4), np.dtype("f4"), None],
    [np.array(["a", "bc"]), np.array([b"a", b"bc"]), np.array([b"a", {}, None], object), np.zeros(3, "M8[s]")],
]


def test_arrays_cross_between_two_versions_of_python_and_numpy(arrays):
    ours, theirs = socket.socketpair()
    command = [*arrays.command, "-c", ECHO, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL) as peer:
        theirs.close()
        channel = Channel(ours)
        for message in MESSAGES * 2:
            channel.send(message)
            assert same(channel.recv(), message)
        channel.close()
        peer.wait(10)


@pytest.fixture
def stage_side(monkeypatch, tmp_path_factory):
    """The family is installed in the stages' environment, its library is not."""
    monkeypatch.syspath_prepend(SOURCE)
    site = tmp_path_factory.mktemp("site")
    declare(site, FAMILY)
    monkeypatch.syspath_prepend(site)


def test_a_worker_computes_with_a_library_that_its_stage_cannot_have(arrays, tmp_path, stage_side, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SITE_PACKAGES))  # of whoever started the server
    directory = save_arrays(tmp_path / "weights")
    spec = spec_of(directory, ARRAYS, arrays.directory.parent)
    with pytest.raises(ImportError, match="array_api_strict"):
        load_adapter(spec, directory)
    order = loader_of(spec, tmp_path).order(1, 1)
    worker = WorkerHandle(order, print, **LIMITS)
    from arrays_family import Arrays

    from sie_triton.contract import Batch

    features = Arrays().sample([LARGE_BYTES // 8, 3])
    rows = worker.forward(Batch(features, np.zeros(2, np.bool_), frozenset(spec.dims), [{}] * 2), 1)
    states = features["frames"].values @ np.load(directory / "matrix.npy")
    np.testing.assert_allclose(rows["multivector"], states, rtol=1e-6)
    assert rows["numpy_version"][:, 0].tolist() == [2, 2]
    assert not np.__version__.startswith("2.")
    assert worker.loaded.seconds.keys() == {"imports", "predecessor", "weights", "calibration"}
    # What it measured is known to the stage the next time.
    assert order.measurements().get(RESIDENT_BYTES) > 0
    worker.close()


@pytest.mark.usefixtures("tokenizers_made_here")
@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("frames_family:Frames", "family frames_family:Frames: is no family: .*"),
        ("sentence_transformer", "family sentence_transformer: cannot be imported .No module named 'tokenizers'."),
    ],
)
def test_packages_that_a_worker_lacks_are_named(arrays, tmp_path, tiny_directory, family, said):
    spec = spec_of(tiny_directory, ARRAYS, arrays.directory.parent, family)
    with pytest.raises(LoadError, match=f"^environment {ARRAYS}: .*{said}; recreate it: .* PACKAGE") as caught:
        WorkerHandle(loader_of(spec, tmp_path).order(1, 1), print, **LIMITS)
    assert caught.value.reason == "dependency"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda python: None, "ended with status 1; tritonserver.log has the details; recreate it: "),  # no numpy
        (lambda python: (python.unlink(), python.write_bytes(b"\0"), python.chmod(0o755)), "cannot be run .*Exec"),
    ],
)
def test_a_python_that_cannot_run_a_worker(empty, tmp_path, spoil, said):
    spec = spec_of(save_frames(tmp_path / "letters"), "empty", empty.directory.parent, "frames_family:Frames")
    order = loader_of(spec, tmp_path).order(1, 1)
    spoil(empty.interpreter)
    with pytest.raises(LoadError, match=f"^environment empty: .*{said}") as caught:
        WorkerHandle(order, print, **LIMITS)
    assert caught.value.reason == "dependency"


# --- a fork server of its own

SERVES = """
import fractions, os
def import_all():
    import decimal, no_such_module
def main(descriptors):
    import sys
    os.write(descriptors[0], sys.executable.encode())
"""


def test_a_lazy_fork_server_imports_at_its_first_request(empty, tmp_path):
    """The fork server goes on if something cannot be imported."""
    (empty.site_packages / "serving.py").write_text(SERVES)
    directory = fork_server_directory(tmp_path, "empty")
    command = ["sie_triton.system.processes.fork_server", "serving", str(directory), "lazily"]
    with Companion("the fork server", command, Log(tmp_path / "log"), {}, program=(*empty.command, "-m")) as companion:
        wait_for(lambda: fork_server_ids(tmp_path))
        assert [each.pid for each in fork_server_ids(tmp_path)] == [companion.pid]
        assert "_decimal" not in mapped(companion.pid)
        ours, theirs = os.pipe()
        child = fork(directory, [theirs])
        os.close(theirs)
        assert os.read(ours, 999).decode() == str(empty.interpreter)
        assert child.status == 0
        assert "_decimal" in mapped(companion.pid)
    assert child.wait(0)


@pytest.mark.parametrize(("engines", "is_lazy"), [(("remote", "my:Engine"), True), (("remote", "torch"), False)])
def test_the_fork_server_imports_at_once_if_a_model_needs_it(tmp_path, tiny_directory, engines, is_lazy):
    settings = read_settings(data_dir=tmp_path, device="cpu")
    spec = spec_of(tiny_directory, "", tmp_path)
    with fork_servers(settings, [replace(spec, engine=engine) for engine in engines]):
        wait_for((settings.status_dir / PID).exists)
        assert ((settings.status_dir / PID).read_text().split()[-1] == WAITING) is is_lazy


def test_each_environment_that_needs_torch_has_a_fork_server(arrays, tmp_path, tiny_directory):
    """An unusable environment gets none, and the forked process names what is missing there."""
    environments = arrays.directory.parent
    without = linked(environments, "a", SITE_PACKAGES)
    settings = read_settings(data_dir=tmp_path / "data", environments_dir=environments, device="cpu")
    specs = [spec_of(tiny_directory, name, environments, "frames_family:Frames") for name in ("", "a")]
    ours = replace(specs[0], engine="torch", family="sentence_transformer")
    specs += [replace(ours, environment=name) for name in ("", "nowhere", ARRAYS, ARRAYS)]
    with fork_servers(settings, specs):
        directory = fork_server_directory(settings.status_dir, ARRAYS)
        wait_for(lambda: fork_server_ids(directory))
        wait_for(lambda: len(fork_server_ids(settings.status_dir)) == 2)
        (fork_server,) = fork_server_ids(directory)
        order = loader_of(specs[-1], settings.status_dir).order(1, 1)
        seen: list[int] = []
        with pytest.raises(LoadError, match=r"cannot be imported \(No module named"):
            WorkerHandle(order, print, **LIMITS, loading=lambda worker: seen.append(parent_of(worker.pid)))
        assert seen[0] == fork_server.pid
        assert not fork_server_directory(settings.status_dir, "a").exists()
    assert not fork_server.is_alive
    shutil.rmtree(without.directory)
