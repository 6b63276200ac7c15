"""ONNX Runtime with a GPU as the device; the library's sessions are faked."""

import onnxruntime
import pytest

from sie_triton.engines.onnx import engine as module
from sie_triton.engines.onnx.engine import OnnxEngine
from sie_triton.engines.onnx.session import CPU, CUDA, open_session
from sie_triton.errors import LoadError
from sie_triton.host.footprint import CUDA_CONTEXT_BYTES
from sie_triton.host.process_memory import share_of
from sie_triton.measurements import Measurements
from tests.stages import spec


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


def test_memory_of_the_gpu_is_not_that_of_the_machine(library, tmp_path, monkeypatch, minilm_directory):
    (tmp_path / "model.onnx").write_bytes(bytes(1000))
    (tmp_path / "model.onnx.data").write_bytes(bytes(5000))
    (tmp_path / "config.json").write_bytes((minilm_directory / "config.json").read_bytes())
    engine = OnnxEngine(spec(engine="onnx", onnx_file="model.onnx"), "cuda:0", Measurements())
    engine.load(tmp_path)
    assert engine.used_bytes() == CUDA_CONTEXT_BYTES + 6000
    monkeypatch.undo()
    on_cpu = OnnxEngine(spec(engine="onnx", onnx_file="model.onnx"), "cpu", Measurements())
    assert 0 < on_cpu.used_bytes() <= 2 * share_of(module.os.getpid()).own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 939524096", True),
        ("CUDA failure 2: out of memory ; GPU=0", True),
        ("CUDA failure 700: an illegal memory access was encountered", False),
    ],
)
def test_want_of_memory_is_known_by_its_text(text, expected):
    engine = OnnxEngine(spec(engine="onnx"), "cuda:0", Measurements())
    assert engine.is_out_of_memory(RuntimeError(text)) is expected
