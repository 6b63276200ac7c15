"""Weights that are only pickled: detection, conversion, and limits on what reading them can do."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sie_triton.contract.spec import Runtime
from sie_triton.errors import LoadError
from sie_triton.models.families.sentence_transformer import SentenceTransformer
from sie_triton.models.weights import pickles
from sie_triton.models.weights.pickles import ReportProgress, pickled
from sie_triton.pipeline.stages.loader import Loader
from sie_triton.records.status import StatusWriter
from tests.support.models import save_bert
from tests.support.pickles import HOSTILE
from tests.support.stages import spec

SHARD = "pytorch_model-00001-of-00001.bin"
TENSORS = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}


def load(
    directory: Path,
    cache: Path,
    report_progress: ReportProgress = lambda line: None,
    files: tuple[str, ...] = (),
    allow: str = "tensors",
) -> Path:
    """Return the directory that a worker would load, for a family that also reads `files`."""
    made = spec(weights=str(directory), allow_pickle=allow, runtime=Runtime(cache_dir=str(cache)))
    # A process has one record of a stage.
    status = StatusWriter(directory.parent / f"status-{threading.get_ident()}", "m", "inference", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceTransformer, "files", files)
        return Loader(made, "cpu", status, threading.Event(), print).order(1, 1, report_progress).directory


@pytest.mark.parametrize(
    ("names", "modules", "found"),
    [
        (["config.json", "pytorch_model.bin"], ["."], ["pytorch_model.bin"]),
        (["model.safetensors", "pytorch_model.bin"], ["."], []),
        (["model-00001-of-00002.safetensors", "pytorch_model.bin"], ["."], []),
        # Of another file in the same directory.
        (["sparse_linear.safetensors", "pytorch_model.bin"], ["."], ["pytorch_model.bin"]),
        (["pytorch_model.bin.index.json", SHARD, "optimizer.bin"], ["."], [SHARD]),
        ([SHARD], ["."], []),
        (["0/model.safetensors", "2_Dense/pytorch_model.bin"], ["0", "2_Dense"], ["2_Dense/pytorch_model.bin"]),
        # Not a module of the model.
        (["model.safetensors", "checkpoint-500/pytorch_model.bin"], ["."], []),
        (["layer_a.pt", "layer_b.pt", "layer_b.safetensors", "optimizer.pt"], ["."], ["layer_a.pt"]),
    ],
)
def test_weights_that_exist_only_as_pickles_are_found(names, modules, found):
    assert pickled(names, modules, ("layer_*", "*.json")) == found


def as_published(directory: Path, *, shards: int) -> None:
    """Pickle the weights of each module, those of the first in this many files."""
    (directory / "2_Dense" / "pytorch_model.bin").touch()
    torch.save(load_file(directory / "2_Dense" / "model.safetensors"), directory / "2_Dense" / "pytorch_model.bin")
    weights = load_file(directory / "model.safetensors")
    names = {name: f"pytorch_model-{i % shards + 1:05}-of-{shards:05}.bin" for i, name in enumerate(weights)}
    for shard in set(names.values()):
        torch.save({name: weights[name] for name in weights if names[name] == shard}, directory / shard)
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    for path in directory.rglob("*.safetensors"):
        path.unlink()


@pytest.mark.usefixtures("tokenizers_made_here")
def test_a_converted_model_gives_identical_vectors(tmp_path, minilm_directory):
    from sie_triton.models.catalog import recognise
    from tests.support.loading import load_adapter, token_batch

    def vectors(directory: Path):
        made = recognise(directory, "m", {"weights_path": str(directory)}).resolve(Runtime(device="cpu"))
        batch = token_batch(torch.arange(1000, 1024, dtype=torch.int32).numpy(), torch.tensor([24]).int().numpy())
        return load_adapter(made, directory).forward(batch)["dense"]

    directory = save_bert(tmp_path, minilm_directory, dense=24)
    expected = vectors(directory)
    as_published(directory, shards=2)
    said: list[str] = []
    converted = load(directory, tmp_path / "cache", said.append)
    assert "converting 3 pickled files to safetensors" in said
    assert (vectors(converted) == expected).all()
    # The second load has nothing to do, and the converted files stay unchanged.
    said.clear()
    assert load(directory, tmp_path / "cache", said.append) == converted
    assert said == []


def test_a_changed_file_is_converted_anew(tmp_path):
    directory, cache = tmp_path / "model", tmp_path / "cache"
    directory.mkdir()
    path = directory / "pytorch_model.bin"
    torch.save(TENSORS, path)
    load(directory, cache)
    torch.save({"c": torch.zeros(5)}, path)
    second = load(directory, cache)
    assert load_file(second / "model.safetensors").keys() == {"c"}
    assert list((cache / "converted").rglob("*.safetensors")) == [second / "model.safetensors"], "the first is removed"


def test_conversion_keeps_names_values_and_dtypes(tmp_path):
    shared = torch.randn(300, 100)
    weights = {
        **TENSORS,
        "tied": shared,
        "tied too": shared,
        "turned": torch.randn(3, 4).half().T,
        "a part": shared[5:7, ::3],
        "a number": torch.tensor(5),
        "none": torch.zeros(0, 3),
        "flags": torch.tensor([True, False, True]),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "eight bits": torch.randn(4).to(torch.float8_e4m3fn),
    }
    torch.save(weights, tmp_path / "pytorch_model.bin")
    # PyTorch cannot read eight-bit values there.
    legacy = {name: tensor for name, tensor in weights.items() if name != "eight bits"}
    torch.save(legacy, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    directory = load(tmp_path, tmp_path / "cache", files=("legacy.*",))
    for name, saved in (("model.safetensors", weights), ("legacy.safetensors", legacy)):
        found = load_file(directory / name)
        assert found.keys() == saved.keys()
        for key, tensor in saved.items():
            assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape)
            assert found[key].view(-1).tolist() == tensor.reshape(-1).tolist()


def test_concurrent_loads_convert_once(tmp_path, monkeypatch):
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    calls, real = [], pickles._unpickle
    monkeypatch.setattr(pickles, "_unpickle", lambda *arguments: (calls.append(1), real(*arguments)))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(load(tmp_path, tmp_path / "cache"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), len(set(found)), len(found)) == (1, 1, 3)


def test_a_conversion_ends_when_its_caller_stops(tmp_path, monkeypatch):
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    started = []
    real = subprocess.Popen

    def start(*arguments, **options):
        started.append(real(*arguments, **options))
        return started[-1]

    def stop(line: str) -> None:
        raise LoadError("this process is about to end")

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(LoadError, match="about to end"):
        load(tmp_path, tmp_path / "cache", stop)
    assert started[0].returncode == -9
    assert not list((tmp_path / "cache" / "converted").glob("*/"))


def test_pickles_are_not_read_unless_allowed(tmp_path, monkeypatch):
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(pickles, "_unpickle", lambda *_: pytest.fail("it was read"))
    with pytest.raises(LoadError, match=r"pytorch_model.bin: weights only as pickles.*allow_pickle: tensors") as told:
        load(tmp_path, tmp_path / "cache", allow="")
    assert told.value.is_permanent
    assert not (tmp_path / "cache").exists()


# One process that imports PyTorch, and a copy of it for each file.
READ_EACH = """
import os, sys
from pathlib import Path
import torch
from sie_triton.models.weights import unpickle
for path in map(Path, sys.argv[1:]):
    print(f"READ {path.stem}", flush=True)
    if os.fork() == 0:
        descriptor = os.open(path.with_suffix(".safetensors"), os.O_WRONLY | os.O_CREAT)
        unpickle.main([(path, descriptor)])
    print("status", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory) -> dict[str, list[str]]:
    """Hostile file → message and exit status."""
    directory = tmp_path_factory.mktemp("hostile")
    paths = [directory / f"{what}.bin" for what in HOSTILE]
    for path in paths:
        save, _ = HOSTILE[path.stem]
        save(path)
    command = [sys.executable, "-c", READ_EACH, *map(str, paths)]
    said = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=True).stdout
    assert not (directory / "sprung").exists()
    return {lines[0]: lines[1:] for lines in map(str.splitlines, said.split("READ ")[1:])}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(refusals, what):
    said, status = refusals[what]
    error = pickles._refused(int(status.removeprefix("status ")), said.encode(), what)
    assert HOSTILE[what][1] in str(error)
    assert f"{what}.bin" in str(error)
    assert error.is_permanent


def test_output_of_the_conversion_process_is_not_trusted(tmp_path, monkeypatch):
    """It has nothing of the server's environment either."""
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\nenv > {tmp_path}/environment\nexit 0\n")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(other))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(LoadError, match="its conversion is not valid safetensors"):
        load(tmp_path, tmp_path / "cache")
    assert "hf_secret" not in (tmp_path / "environment").read_text()
    for said in (b"", b"[]", b'{"reason": "no such reason", "message": "x"}', b'{"reason": "failed"}'):
        assert pickles._refused(pickles.REFUSED, said, "x.bin").reason == "corrupt"


# Attempts from within, each in its own process; all succeed in a process that is not confined.
ATTEMPTS = {
    "a socket": "import socket; socket.socket()",
    "a pair of sockets": "import socket; socket.socketpair()",
    "a program": "os.execv('/bin/true', ['true'])",
    "a process": "os.fork() or os._exit(0)",
    "its environment": "open('/proc/self/environ').read()",
    "its memory": "open('/proc/self/mem', 'rb')",
    "its parent's environment": "open(f'/proc/{os.getppid()}/environ').read()",
    "a file of the data directory": "open(sys.argv[1] + '/there').read()",
    "a file by a descriptor": "os.open('there', os.O_RDONLY, dir_fd=here)",
    "a file by openat2": "refused(437, here, b'there', ctypes.create_string_buffer(24), 24)",
    "a path that may lead on": "os.open(sys.argv[1], os.O_PATH)",
    "a list of files": "os.listdir('.')",
    "a list of files by a descriptor": "os.listdir(here)",
    "the size of a file": "os.stat('there').st_size",
    "a link": "os.readlink('/proc/self/exe')",
    "whether a file is there": "os.access('there', os.F_OK) or fail()",
    "memory of its parent": "refused(310, os.getppid(), 0, 0, 0, 0, 0)",
    "its parent traced": "refused(101, 16, os.getppid(), 0, 0)",
    "a file of its own": "open(sys.argv[1] + '/made', 'w')",
    "a file opened for writing": "os.open(sys.argv[1] + '/there', os.O_RDWR)",
    "a file removed": "os.unlink(sys.argv[1] + '/there')",
    "a file renamed": "os.rename(sys.argv[1] + '/there', sys.argv[1] + '/elsewhere')",
    "a directory": "os.mkdir(sys.argv[1] + '/directory')",
    "a signal to its parent": "os.kill(os.getppid(), 0)",
    "limits of its parent": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)",
    "io_uring": "libc.syscall(425, 1, ctypes.create_string_buffer(120)) < 0 and fail()",
    "another filter": "libc.prctl(22, 2, 0, 0, 0) and fail()",
    "a gigabyte": "bytearray(1 << 30)",
}
TRY_EACH = """
import ctypes, os, signal, sys, time
from sie_triton.system.processes.confined import confine
libc = ctypes.CDLL(None, use_errno=True)
def fail(): raise OSError
def refused(*call):
    words = (ctypes.c_long(each) if isinstance(each, int) else each for each in call)
    libc.syscall(*words) < 0 and fail()
attempts, is_confined = eval(sys.argv[2]), sys.argv[3] == "confined"
os.chdir(sys.argv[1])
for what, code in attempts.items():
    open("there", "w").close()
    here = os.open(".", os.O_RDONLY)
    pid = os.fork()
    if pid == 0:
        import socket, resource
        if is_confined:
            confine(memory_bytes=500_000_000, file_bytes=1000, seconds=60)
        try:
            exec(code)
        except (OSError, MemoryError):
            os._exit(1)
        os._exit(0)
    print(what, os.waitstatus_to_exitcode(os.wait()[1]), sep=": ", flush=True)
pid = os.fork()
if pid == 0:
    file = open("there")
    confine(memory_bytes=1, file_bytes=1000, seconds=1)
    file.read()
    while True: pass
print("ended by", os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("how", ["confined", "free"])
def test_a_confined_process_can_do_only_what_is_listed(tmp_path, how):
    attempts = {what: code for what, code in ATTEMPTS.items() if how == "confined" or what not in NOT_EVEN_FREE}
    command = [sys.executable, "-c", TRY_EACH, str(tmp_path), repr(attempts), how]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    status = 1 if how == "confined" else 0
    assert lines == [*(f"{what}: {status}" for what in attempts), "ended by -14"]


# Not available here, nor in many containers.
NOT_EVEN_FREE = ("io_uring", "another filter", "its parent traced")
