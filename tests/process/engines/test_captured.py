"""Passes as CUDA graphs record them, by a recorder like these: one output, which each replay writes again."""

import time
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakSet

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.architectures import ARCHITECTURES, build
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch import graph_comparison
from sie_triton.engines.torch.cuda_graphs import CapturedPasses
from sie_triton.engines.torch.encoder import PACKED, TorchEncoder, load_model
from sie_triton.engines.torch.graph_comparison import may_have_graph, take_graph
from sie_triton.engines.torch.probe import choose_path, relative_error
from sie_triton.errors import LoadError
from tests.support.loras import save_lora

LENGTHS = np.array([1, 40, 8, 2], np.int32)
KEYS = np.array([1, 40, 3, 1], np.int32)
IDS = np.random.default_rng(2).integers(8000, 20000, LENGTHS.sum(), dtype=np.int32)
IDS[2::4] = 1  # the padding of XLM-RoBERTa, which has a position of its own
TYPES = np.zeros_like(IDS)

# In which a token's distance to others is part of its score; padded.
OF_THEIR_OWN = ("DeBERTa v2",)
PADDED = ("Gemma 2, capped scores", "MPNet", "T5 encoder", "BLOOM, causal")
ALIKE = [each for each in ARCHITECTURES if each not in (*OF_THEIR_OWN, *PADDED)]


def encoder_of(architecture, dtype=torch.float32):
    encoder = TorchEncoder(build(architecture).to(dtype))
    choose_path(encoder, 256, Measurements())
    return encoder


@pytest.fixture(scope="module")
def xlm_roberta():
    return encoder_of("XLM-RoBERTa")


class Recorder:
    """Recorder that counts recordings, kept ones, and replays; a replay takes so many seconds."""

    def __init__(self, seconds=0):
        self.seconds = seconds
        self.num_recorded = self.num_replayed = 0
        self.kept, self.sizes = WeakSet(), []

    def __call__(self, run):
        self.num_recorded += 1
        states = run().clone()
        self.sizes.append(len(states))

        def replay():
            self.num_replayed += 1
            time.sleep(self.seconds)
            return states.copy_(run())

        self.kept.add(replay)
        return replay


def states_of(passes, encoder, ids=IDS, lengths=LENGTHS, keys=KEYS):
    return passes.hidden_states(ids, lengths, keys, np.zeros_like(ids), encoder.positions(ids, lengths))


@pytest.mark.parametrize("architecture", ["XLM-RoBERTa", "ModernBERT, local and global", "Qwen3, causal"])
def test_captured_passes_give_the_results_of_the_packed_path(architecture):
    encoder = encoder_of(architecture)
    found = states_of(CapturedPasses(encoder, Recorder), encoder)
    assert relative_error(found, encoder.packed(IDS, LENGTHS, KEYS, TYPES)) <= 1e-5


@pytest.mark.parametrize("architecture", ALIKE)
def test_a_captured_pass_runs_entirely_on_the_device(architecture):
    """A recording runs on the device alone: reading a number back would fail, and tensors made on the processor are not
    in it.
    """
    encoder = TorchEncoder(build(architecture).to("meta"))
    encoder.use(PACKED)
    inputs = torch.zeros(5, 16, dtype=torch.int64, device="meta")
    with torch.inference_mode(), Devices() as devices:
        CapturedPasses(encoder)._run(inputs)
    assert devices.seen == {"meta"}


class Devices(TorchDispatchMode):
    """Recorder of the devices of all tensors that operators read and write."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        tensors = (leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor))
        self.seen |= {tensor.device.type for tensor in tensors}
        return result


def test_in_bfloat16_too():
    encoder = encoder_of("BERT", torch.bfloat16)
    error = graph_comparison.probe_graph(encoder, CapturedPasses(encoder, Recorder))
    assert 0 < error < 0.03


@pytest.mark.parametrize("architecture", OF_THEIR_OWN)
def test_models_with_their_own_attention_cannot_be_captured(architecture):
    encoder = encoder_of(architecture)
    assert encoder.path == PACKED
    with pytest.raises(LoadError, match=r"differs from the packed path|cannot be run"):
        graph_comparison.probe_graph(encoder, CapturedPasses(encoder, Recorder))


def test_each_size_is_recorded_once_without_overwriting_earlier_results(xlm_roberta):
    record = Recorder()
    passes = CapturedPasses(xlm_roberta, lambda: record)
    whole = states_of(passes, xlm_roberta)
    kept = whole.clone()
    others = states_of(passes, xlm_roberta, IDS[::-1].copy(), LENGTHS[::-1].copy(), KEYS[::-1].copy())
    assert torch.equal(whole, kept)
    assert not torch.allclose(others, kept)
    for num_tokens in (1, 7, 8):
        states_of(passes, xlm_roberta, IDS[:num_tokens], *2 * [np.array([num_tokens], np.int32)])
    assert (record.num_recorded, record.num_replayed) == (2, 5)


def test_serve_records_all_sizes_up_to_its_limit_in_advance(xlm_roberta):
    """Warm-up uses a recorder of its own, whose memory is not shared; it records the largest pass first, which
    allocates that memory.
    """
    before, record = recorders = [Recorder(), Recorder()]
    passes = CapturedPasses(xlm_roberta, iter(recorders).__next__)
    states_of(passes, xlm_roberta)
    passes.serve(32, 32)
    assert (before.num_recorded, len(before.kept)) == (1, 0)
    assert (record.sizes, len(record.kept)) == ([32, 16, 8], 3)
    assert passes.suits(np.array([16, 16]))
    assert not passes.suits(np.array([16, 17]))
    states_of(passes, xlm_roberta, IDS[:30], *2 * [np.array([30], np.int32)])
    assert record.num_recorded == 3


def test_passes_of_many_threads_do_not_mix(xlm_roberta):
    passes = CapturedPasses(xlm_roberta, lambda: Recorder(0.01))
    rows = [(np.full(5, 9000 + each, np.int32), *2 * [np.array([5], np.int32)]) for each in range(8)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda row: states_of(passes, xlm_roberta, *row), rows))
    for (ids, lengths, keys), states in zip(rows, found, strict=True):
        assert relative_error(states, xlm_roberta.packed(ids, lengths, keys, np.zeros_like(ids))) <= 1e-5


def test_items_are_no_longer_than_the_table_of_positions(xlm_roberta):
    assert CapturedPasses(xlm_roberta).max_length == 518
    xlm_roberta.config.max_position_embeddings, before = 80, xlm_roberta.config.max_position_embeddings
    passes = CapturedPasses(xlm_roberta)
    xlm_roberta.config.max_position_embeddings = before
    passes.max_tokens = 256
    assert passes.suits(np.array([78, 78]))
    assert not passes.suits(np.array([79]))


def test_captured_passes_are_used_where_they_are_faster(tmp_path, monkeypatch):
    build("BERT").save_pretrained(tmp_path)
    encoder = TorchEncoder(load_model(tmp_path, torch.float32, "cpu"))
    choose_path(encoder, 256, Measurements())
    record, measurements = Recorder(), Measurements()
    monkeypatch.setattr(graph_comparison, "form_of", lambda *_: CapturedPasses(encoder, lambda: record))
    monkeypatch.setattr(graph_comparison, "ratio_at", lambda size, *_: 0.5 if size <= 64 else 1.2)
    expected = encoder.hidden_states(IDS, LENGTHS, KEYS)
    assert take_graph(encoder, tmp_path, 1, measurements, "", None) == 64
    replayed = record.num_replayed
    assert relative_error(encoder.hidden_states(IDS, LENGTHS, KEYS), expected) <= 1e-5
    assert record.num_replayed == replayed + 1
    long = np.full(65, 9000, np.int32)
    encoder.hidden_states(long, np.array([65], np.int32))
    assert record.num_replayed == replayed + 1
    assert measurements.get("graph")["max_tokens"] == 64


def test_a_pass_with_an_adapter_is_not_captured(tmp_path, monkeypatch):
    """An adapter that came before the recording does not show in it either."""
    model = build("XLM-RoBERTa")
    model.save_pretrained(tmp_path / "base")
    save_lora(tmp_path / "lora", build("XLM-RoBERTa"), target_modules=["query", "value"])
    encoder = TorchEncoder(load_model(tmp_path / "base", torch.float32, "cpu"))
    choose_path(encoder, 256, Measurements())
    plain = encoder.hidden_states(IDS, LENGTHS)
    encoder.add_lora("one", tmp_path / "lora")
    record = Recorder()
    encoder.graph = CapturedPasses(encoder, lambda: record)
    encoder.graph.serve(64, 64)
    assert relative_error(encoder.hidden_states(IDS, LENGTHS), plain) <= 1e-5
    assert record.num_replayed == 1
    with encoder.adapted(["one"] * len(LENGTHS)):
        assert relative_error(encoder.hidden_states(IDS, LENGTHS), plain) > 0.01
    assert record.num_replayed == 1


def test_captured_passes_are_available_to_bfloat16_models_on_a_gpu():
    encoder = encoder_of("BERT", torch.bfloat16)
    assert not may_have_graph(encoder, Measurements(), "")
    encoder.device = torch.device("cuda:0")
    assert may_have_graph(encoder, Measurements(), "")
    assert isinstance(graph_comparison.form_of(encoder, None, 1), CapturedPasses)
