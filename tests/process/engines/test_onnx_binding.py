"""ONNX Runtime reads and writes PyTorch's memory: its real sessions on a CPU, which a pretended GPU calls its own."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from transformers import BertConfig

from sie_triton.engines.onnx.engine import OnnxEncoder, OnnxModel
from sie_triton.engines.torch.transfers import Indices
from tests.support.pretended_gpu import OnDevice, PretendedGpu

NAMES = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
WIDTH = 5
LENGTHS = np.array([9, 2, 31, 2, 8], np.int32)
IDS = np.random.default_rng(3).integers(1, 2000, LENGTHS.sum(), dtype=np.int32)


def session_of(name, num_type, width, rank):
    """Open a graph whose output is the sum of its inputs, times 1 to WIDTH, for each token or each item."""
    join = "ReduceSum" if rank == 2 else "Unsqueeze"
    nodes = [helper.make_node("Cast", [each], [f"{each}_"], to=TensorProto.FLOAT) for each in NAMES]
    nodes += [
        helper.make_node("Sum", [f"{each}_" for each in NAMES], ["sum"]),
        helper.make_node(join, ["sum", "last"], ["joined"]),
        # Keeps all, but that is not known before the pass.
        *([] if width == WIDTH else [helper.make_node("Compress", ["weights", "all"], ["some"])]),
        helper.make_node("Mul", ["joined", "weights" if width == WIDTH else "some"], ["product"]),
        helper.make_node("Cast", ["product"], [name], to=num_type),
    ]
    inputs = [helper.make_tensor_value_info(each, TensorProto.INT64, ["items", "length"]) for each in NAMES]
    dims = ["items", "length", width] if rank == 3 else ["items", width]
    constants = [
        helper.make_tensor("last", TensorProto.INT64, [1], [rank - 1]),
        helper.make_tensor("weights", TensorProto.FLOAT, [WIDTH], range(1, WIDTH + 1)),
        helper.make_tensor("all", TensorProto.BOOL, [WIDTH], [True] * WIDTH),
    ]
    outputs = [helper.make_tensor_value_info(name, num_type, dims)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class OnGpu:
    """A session whose memory is that of a pretended GPU, and a list of what is done, in order."""

    def __init__(self, session, done):
        self._session, self._done = session, done

    def __getattr__(self, name):
        return getattr(self._session, name)

    def io_binding(self):
        return Binding(self._session.io_binding(), self._done)

    def run(self, names, inputs):
        self._done.append("host")
        return self._session.run(names, inputs)

    def run_with_iobinding(self, binding):
        self._done.append("run")
        self._session.run_with_iobinding(binding.real)


class Binding:
    def __init__(self, real, done):
        self.real, self._done = real, done

    def bind_input(self, name, device, index, *given):
        assert (device, index) == ("cuda", 0)
        self._done.append("input")
        self.real.bind_input(name, "cpu", 0, *given)

    def bind_output(self, name, device, index, *given):
        assert (device, index) == ("cuda", 0)
        self._done.append("output")
        self.real.bind_output(name, "cpu", 0, *given)

    def synchronize_inputs(self):
        self._done.append("inputs there")
        self.real.synchronize_inputs()

    def synchronize_outputs(self):
        self._done.append("outputs there")
        self.real.synchronize_outputs()


@pytest.fixture
def gpu(monkeypatch):
    """Pretend to have a GPU whose pointers are those of main memory."""
    done = []
    stream = SimpleNamespace(synchronize=lambda: done.append("arrived"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(OnDevice, "data_ptr", lambda self: self.held.data_ptr(), raising=False)
    pretended = PretendedGpu()
    pretended.done = done
    return pretended


def encoder_of(name, rank, num_type=TensorProto.FLOAT, width=WIDTH, gpu=None):
    session = session_of(name, num_type, width, rank)
    session = session if gpu is None else OnGpu(session, gpu.done)
    return OnnxEncoder(
        OnnxModel(session, "model.onnx", BertConfig(vocab_size=2000), 0), (name,), rank, "cuda:0" if gpu else "cpu"
    )


PASS = ["arrived", *["input"] * len(NAMES), "output", "inputs there", "run", "outputs there"]


@pytest.mark.parametrize("num_type", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE])
@pytest.mark.parametrize("lengths", [LENGTHS, np.array([26, 26], np.int32), LENGTHS.sum(keepdims=True)])
def test_states_stay_on_the_gpu(gpu, num_type, lengths):
    """They are the same, bit for bit, as those of arrays on a CPU; one upload carries what the caller reads, too."""
    expected = encoder_of("last_hidden_state", 3, num_type).hidden_states(IDS, lengths, lengths - 1)
    on_gpu, after = encoder_of("last_hidden_state", 3, num_type, gpu=gpu), Indices(np.arange(3))
    with gpu:
        found = on_gpu.hidden_states(IDS, lengths, lengths - 1, extra_indices=[after])
        assert after.on(found.device)[0].held.tolist() == [0, 1, 2]
    assert isinstance(found, OnDevice)
    assert (found.dtype, gpu.book.order, gpu.book.uploads) == (torch.float32, "u", [False])
    assert gpu.done == PASS * len(set(lengths.tolist()) - {9})  # 8 and 9 tokens share a pass
    assert torch.equal(found.held, expected)


def test_logits_come_to_the_cpu_once(gpu):
    expected = encoder_of("logits", 2).logits(IDS, LENGTHS, IDS % 2)
    with gpu:
        found = encoder_of("logits", 2, gpu=gpu).logits(IDS, LENGTHS, IDS % 2)
    assert (gpu.book.order, gpu.book.uploads) == ("ud", [False])
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("num_type", "width"), [(TensorProto.FLOAT, "hidden"), (TensorProto.INT32, WIDTH)])
def test_an_output_of_unknown_size_or_type_goes_through_the_host(gpu, num_type, width):
    expected = encoder_of("last_hidden_state", 3, num_type, width).hidden_states(IDS, LENGTHS)
    with gpu:
        found = encoder_of("last_hidden_state", 3, num_type, width, gpu).hidden_states(IDS, LENGTHS)
    assert set(gpu.done) == {"host"}
    assert torch.equal(found.held, expected)
