"""ONNX Runtime with a GPU as the device; the library's sessions are faked."""

import os
from types import SimpleNamespace

import onnxruntime
import pytest
import torch

from sie_triton.engines.measurements import Measurements
from sie_triton.engines.onnx.engine import OnnxEngine
from sie_triton.engines.onnx.session import CPU, CUDA, open_session
from sie_triton.errors import LoadError
from sie_triton.system.host.footprint import CUDA_CONTEXT_BYTES
from sie_triton.system.host.process_memory import share_of
from tests.support.stages import spec


class Session:
    """A session of a library that can use the `usable` providers."""

    usable = (CUDA, CPU)

    def __init__(self, path, options, providers):
        self.asked, self.falls_back = providers, True

    def get_providers(self):
        return list(self.usable)

    def disable_fallback(self):
        self.falls_back = False


@pytest.fixture
def library(monkeypatch):
    """Fake the ONNX Runtime library built for GPUs."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)


def test_a_library_for_cpus_is_refused_with_what_to_install(tmp_path):
    with pytest.raises(LoadError, match=r"pip uninstall onnxruntime && pip install 'sie-triton\[gpu\]'") as caught:
        open_session(tmp_path / "model.onnx", "cuda:0", 1)
    assert caught.value.reason == "dependency"


def test_an_onnx_runtime_that_cannot_use_the_gpu_is_refused(library, tmp_path, monkeypatch):
    monkeypatch.setattr(Session, "usable", (CPU,))
    with pytest.raises(LoadError, match="cannot use the GPU") as caught:
        open_session(tmp_path / "model.onnx", "cuda:0", 1)
    assert caught.value.reason == "dependency"


def test_a_failed_pass_does_not_move_the_model_to_the_cpu(library, tmp_path):
    session = open_session(tmp_path / "model.onnx", "cuda:1", 1)
    assert not session.falls_back
    (name, options), last = session.asked
    assert (name, options["device_id"], last) == (CUDA, 1, CPU)
    assert open_session(tmp_path / "model.onnx", "cpu", 1).asked == [CPU]


def test_used_bytes_on_a_gpu_are_the_context_and_the_files(library, tmp_path, monkeypatch, minilm_directory):
    (tmp_path / "model.onnx").write_bytes(bytes(1000))
    (tmp_path / "model.onnx.data").write_bytes(bytes(5000))
    (tmp_path / "config.json").write_bytes((minilm_directory / "config.json").read_bytes())
    engine = OnnxEngine(spec(engine="onnx", onnx_file="model.onnx"), "cuda:0", Measurements())
    engine.load(tmp_path)
    assert engine.used_bytes() == CUDA_CONTEXT_BYTES + 6000
    monkeypatch.undo()
    on_cpu = OnnxEngine(spec(engine="onnx", onnx_file="model.onnx"), "cpu", Measurements())
    assert 0 < on_cpu.used_bytes() <= 2 * share_of(os.getpid()).own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 939524096", True),
        ("CUDA failure 2: out of memory ; GPU=0", True),
        ("CUDA failure 700: an illegal memory access was encountered", False),
    ],
)
def test_out_of_memory_is_recognised_by_its_message(text, expected):
    engine = OnnxEngine(spec(engine="onnx"), "cuda:0", Measurements())
    assert engine.is_out_of_memory(RuntimeError(text)) is expected


FAILURES = [
    ("CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=a ; file=b.cc ; line=1", True),
    ("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0", True),
    ("CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED ; GPU=0", True),
    ("CUDNN_FE failure 8: GRAPH_EXECUTION_FAILED ; GPU=0", True),
    ("CUDA failure 2: out of memory ; GPU=0", False),
    ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", False),
    ("CUBLAS failure 15: CUBLAS_STATUS_NOT_SUPPORTED ; GPU=0", False),
    ("Non-zero status code returned while running Gather node: indices element out of data bounds", False),
]


@pytest.mark.parametrize(("text", "expected"), FAILURES)
def test_a_failure_of_cuda_inside_the_library_makes_the_device_unusable(monkeypatch, text, expected):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    engine = OnnxEngine(spec(engine="onnx"), "cuda:0", Measurements())
    assert engine.is_broken(RuntimeError(text)) is expected


def test_a_cuda_error_seen_by_pytorch_makes_the_device_unusable(monkeypatch):
    def synchronize():
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=synchronize))
    assert OnnxEngine(spec(engine="onnx"), "cuda:0", Measurements()).is_broken(RuntimeError("another"))
    assert not OnnxEngine(spec(engine="onnx"), "cpu", Measurements()).is_broken(RuntimeError("another"))
