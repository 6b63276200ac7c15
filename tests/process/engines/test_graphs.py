"""Graphs give the same states as the packed path, and are used only where they are faster."""

import itertools
import shutil
import time
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from benchmarks.architectures import ARCHITECTURES, build
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.onnx.graph import SIZES, Graph
from sie_triton.engines.torch import graph_comparison
from sie_triton.engines.torch.encoder import TorchEncoder, load_model
from sie_triton.engines.torch.export import export
from sie_triton.engines.torch.graph_comparison import largest, longest_seen, may_have_graph, take_graph
from sie_triton.engines.torch.probe import choose_path, relative_error
from sie_triton.errors import LoadError
from sie_triton.pipeline.limits import WorkerLimits
from sie_triton.pipeline.worker import graphs as making
from sie_triton.pipeline.worker.graphs import Graphs, forget_others
from sie_triton.pipeline.worker.messages import Quickened
from tests.support.limits import cgroups
from tests.support.loras import save_lora

# Position IDs from 2; causal attention.
FEW = ("XLM-RoBERTa", "Qwen3, causal")

# Architectures with special attention, that cannot be exported, or that are padded.
WITHOUT = ("Gemma 2, capped scores", "MPNet", "DeBERTa v2", "T5 encoder", "BLOOM, causal")
MANY = [each for each in ARCHITECTURES if each not in (*FEW, *WITHOUT)]
LENGTHS = np.array([1, 5, 8, 2], np.int32)
KEYS = np.array([1, 5, 3, 1], np.int32)
IDS = np.random.default_rng(2).integers(8000, 20000, LENGTHS.sum(), dtype=np.int32)
IDS[2::4] = 1  # the padding of XLM-RoBERTa, which has a position of its own


class Subject:
    """Encoder, with the graph exported from its weights."""

    def __init__(self, architecture, directory):
        self.directory = directory
        build(architecture).save_pretrained(directory)
        self.path = directory / "graph.onnx"
        export(TorchEncoder(load_model(directory, torch.float32, "cpu")), self.path)
        self.encoder = self.load()

    def load(self) -> TorchEncoder:
        encoder = TorchEncoder(load_model(self.directory, torch.float32, "cpu"))
        choose_path(encoder, 256, Measurements())
        return encoder

    def graph(self) -> Graph:
        longest = longest_seen(self.encoder)
        return Graph(self.path, 1, is_causal=self.encoder.is_causal, max_length=longest)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return Subject("XLM-RoBERTa", tmp_path_factory.mktemp("bert"))


@pytest.mark.parametrize("architecture", [*FEW, *(pytest.param(each, marks=pytest.mark.slow) for each in MANY)])
def test_a_graph_gives_what_the_packed_path_does(tmp_path, bert, architecture):
    subject = bert if architecture == "XLM-RoBERTa" else Subject(architecture, tmp_path)
    encoder, types = subject.encoder, np.zeros_like(IDS)
    found = subject.graph().hidden_states(IDS, LENGTHS, KEYS, types, encoder.positions(IDS, LENGTHS))
    expected = encoder.packed(IDS, LENGTHS, KEYS, types)
    assert relative_error(found, expected) <= 1e-5
    taken = take_graph(encoder, subject.path, 1, Measurements(), "", faster())
    assert taken == SIZES[-1]
    assert torch.equal(encoder.hidden_states(IDS, LENGTHS, KEYS, types), found)


def test_a_single_item_may_have_tokens_that_are_no_keys(bert):
    graph, lengths, keys = bert.graph(), LENGTHS[1:2], np.array([3], np.int32)
    ids, types = IDS[:5], np.zeros(5, np.int32)
    for seen in (keys, lengths, keys):
        found = graph.hidden_states(ids, lengths, seen, types, bert.encoder.positions(ids, lengths))
        assert relative_error(found, bert.encoder.packed(ids, lengths, seen, types)) <= 1e-5


def test_only_suitable_sub_batches_run_through_the_graph(bert):
    encoder = bert.load()
    take_graph(encoder, bert.path, 1, Measurements(), "", faster())
    long = np.full(SIZES[-1] + 1, 9000, np.int32)
    whole = np.array([len(long)], np.int32)
    for ids, lengths in ((long, whole), (IDS, LENGTHS)):
        expected = bert.encoder.packed(ids, lengths, lengths, np.zeros_like(ids))
        assert relative_error(encoder.hidden_states(ids, lengths), expected) < 1e-5
    encoder.graph.hidden_states = None
    encoder.hidden_states(long, whole)
    with pytest.raises(TypeError):
        encoder.hidden_states(IDS, LENGTHS)


def test_items_beyond_a_window_do_not_run_through_the_graph(tmp_path):
    encoder = TorchEncoder(build("Mistral, causal, window"))
    assert longest_seen(encoder) == 16
    graph = Graph.__new__(Graph)
    graph.max_tokens, graph.max_length, graph._num_threads = 64, 16, 1
    assert graph.suits(np.array([16, 16]))
    assert not graph.suits(np.array([17]))
    assert not graph.suits(np.array([16] * 5))


def faster(ratio=0.5):
    """Return a clock by which every other call, the graph's, takes `ratio` of the time."""
    times = itertools.cycle((1.0, ratio))
    return lambda work: (work(), next(times))[1]


def test_a_slower_graph_is_not_taken_nor_opened_again(bert):
    encoder, measurements = bert.load(), Measurements()
    assert may_have_graph(encoder, measurements, "")
    assert take_graph(encoder, bert.path, 1, measurements, "", faster(1.0)) == 0
    assert encoder.graph is None
    assert not may_have_graph(encoder, measurements, "")
    assert may_have_graph(encoder, measurements, "labels")


def test_a_graph_whose_trial_ends_the_process_is_refused_in_the_end(bert, monkeypatch):
    class Ended(BaseException):
        pass

    def end(*_):
        raise Ended

    def end_trials(measurements, times):
        with monkeypatch.context() as patch:
            patch.setattr(graph_comparison, "measured", end)
            for _ in range(times):
                with pytest.raises(Ended):
                    take_graph(bert.load(), bert.path, 1, measurements, "", None)
        return measurements

    measurements = end_trials(Measurements(), 2)
    for _ in range(2):  # a successful trial resets the count of failures
        assert take_graph(bert.load(), bert.path, 1, measurements, "", faster()) == SIZES[-1]
    measurements = end_trials(Measurements(), 3)
    assert take_graph(bert.load(), bert.path, 1, measurements, "", faster()) == 0
    assert "ended in each of 3 attempts" in measurements.get("graph")["reason"]


def test_with_fewer_threads_only_small_passes_use_the_graph(bert, monkeypatch):
    measurements, ratios = Measurements(), iter((0.3, 0.4, 0.45, 0.6, 0.8, 0.9, 0.9, 1.6))
    monkeypatch.setattr(graph_comparison, "ratio_at", lambda *_: next(ratios))
    encoder = bert.load()
    assert take_graph(encoder, bert.path, 2, measurements, "", None) == 48
    some, more = np.array([12], np.int32), np.array([48], np.int32)
    torch.set_num_threads(1)  # the tests' default
    assert not encoder.graph.suits(more)
    assert encoder.graph.suits(some)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert encoder.graph.suits(more)


def test_a_pass_with_an_adapter_does_not_run_through_the_graph(tmp_path, bert):
    encoder = bert.load()
    save_lora(tmp_path, build("XLM-RoBERTa"), target_modules=["query", "value"])
    encoder.add_lora("one", tmp_path)

    def states(names):
        with encoder.adapted(names):
            return encoder.hidden_states(IDS, LENGTHS, KEYS)

    before = [states(names) for names in (["one"] * 4, ["", "one", "", "one"], [""] * 4)]
    take_graph(encoder, bert.path, 1, Measurements(), "", faster())
    after = [states(names) for names in (["one"] * 4, ["", "one", "", "one"], [""] * 4)]
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])
    assert relative_error(after[0], after[2]) > 0.01
    assert not torch.equal(after[2], before[2])
    assert relative_error(after[2], before[2]) <= 1e-5


def scale(array):
    return array * np.float32(1.05)


WRONG = {
    "weights": (lambda path: change(path, scale), "differs from the packed path by"),
    "no numbers": (lambda path: change(path, lambda array: array * np.float32("nan")), "non-finite values"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:1000]), "ONNX Runtime cannot open it"),
    "gone": (lambda path: path.unlink(), "ONNX Runtime cannot open it"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_graph_is_refused(tmp_path, bert, wrong):
    spoil, reason = WRONG[wrong]
    for path in bert.path.parent.glob("graph.onnx*"):
        shutil.copy(path, tmp_path)
    spoil(tmp_path / "graph.onnx")
    encoder, measurements = bert.load(), Measurements()
    assert take_graph(encoder, tmp_path / "graph.onnx", 1, measurements, "", faster()) == 0
    assert reason in measurements.get("graph")["reason"]
    assert encoder.graph is None
    assert len(encoder.hidden_states(IDS, LENGTHS)) == len(IDS)


def change(path, how):
    """Change one matrix of a layer."""
    model = onnx.load(path)
    weights = next(each for each in model.graph.initializer if "query.bias" in each.name or list(each.dims) == [64, 64])
    weights.CopyFrom(numpy_helper.from_array(how(numpy_helper.to_array(weights)), weights.name))
    onnx.save(model, path)


@pytest.mark.slow
def test_graphs_of_models_with_capped_attention_scores_are_refused(tmp_path):
    """The exporter follows the library's eager attention, which does not cap scores."""
    with pytest.raises(LoadError, match="differs from the packed path"):
        graph_comparison.probe_graph(*(lambda s: (s.encoder, s.graph()))(Subject("Gemma 2, capped scores", tmp_path)))


def test_one_measurement_that_was_disturbed_changes_little():
    assert largest({}) == 0
    assert largest({4: 0.99}) == 0
    assert largest({4: 0.4, 8: 0.5, 16: 1.2, 32: 0.6, 48: 1.0, 64: 1.4}) == 32


class Unexportable(Graphs):
    """Graphs of a model of 1000 bytes whose exports all fail."""

    def __init__(self, directory):
        self.refused = []
        self._engine = SimpleNamespace(refuse_graphs=self.refused.append)
        self._order = SimpleNamespace(spec="", directory=directory)

    def export(self, directory):
        return self._export(directory / "graphs" / "m-1", 1000)


@pytest.fixture
def failing(monkeypatch, tmp_path):
    def start(command, log, **_):
        log.write_text("Traceback\nOSError: no space left\n")
        return SimpleNamespace(wait=lambda _: None, end=lambda: None, status=1, was_killed=False)

    monkeypatch.setattr(making, "start", start)
    monkeypatch.setattr(making, "available_bytes", lambda: 2_000_000_000)
    return Unexportable(tmp_path)


def test_an_export_that_failed_is_remembered_but_not_for_want_of_space(failing, monkeypatch, tmp_path):
    free = iter((10**9, 10**9, 10**9, 100, 100))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free)))
    assert not failing.export(tmp_path)
    assert failing.refused == ["OSError: no space left"]
    assert not failing.export(tmp_path)
    assert len(failing.refused) == 1  # the disk was full when the export ended
    assert not failing.export(tmp_path)
    assert next(free, None) is None  # the disk was full before the export began
    assert not list((tmp_path / "graphs").iterdir())


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_failed_export_is_remembered_unless_it_was_killed(failing, monkeypatch, tmp_path, was_killed):
    def start(command, log, **_):
        log.touch()
        ended = {"status": -9, "was_killed": was_killed, "describe_exit": "SIGKILL"}
        return SimpleNamespace(wait=lambda _: None, end=lambda: None, **ended)

    monkeypatch.setattr(making, "start", start)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert not failing.export(tmp_path)
    assert failing.refused == ([] if was_killed else ["SIGKILL"])


def test_memory_for_an_export_is_that_of_the_container(failing, monkeypatch, tmp_path):
    monkeypatch.undo()
    for name, value in (("memory.max", 5_000_000), ("memory.current", 4_000_000), ("memory.stat", "inactive_file 9")):
        (tmp_path / name).write_text(str(value))
    cgroups(monkeypatch, tmp_path)
    assert making.available_bytes() == 1_000_009
    assert not failing.export(tmp_path)
    assert failing.refused == []
    assert not (tmp_path / "graphs").exists()


def test_graphs_recorded_in_memory_need_no_file_and_no_disk_space(tmp_path):
    weighty = SimpleNamespace(weights_bytes=2 * WorkerLimits.graph_weights_bytes)
    used = iter((100, 130))
    engine = SimpleNamespace(
        graphs_are_files=False,
        may_have_graphs=lambda: {"": weighty},
        take_graph=lambda *_: 64,
        used_bytes=lambda: next(used),
        measurements=Measurements(),
        release_threads=lambda: None,
    )
    order = SimpleNamespace(makes_graphs=True, graphs=tmp_path / "none", threads=1, num_lanes=1)
    made = Graphs(engine, order, WorkerLimits(num_passes_before_export=9))
    made.start()
    with made.counted_pass():
        pass
    deadline = time.monotonic() + 20
    while (news := made.take_change()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert news == Quickened(64, 30, news.started_ns, news.ended_ns)
    assert 0 < news.started_ns <= news.ended_ns
    assert not list(tmp_path.iterdir())


def test_graphs_of_the_same_model_are_forgotten(tmp_path):
    for name in ("org__m-1", "org__m-2", "making-org__m-3", "org__m-large-1", "org__m2-1"):
        (tmp_path / name).mkdir()
    forget_others(tmp_path, "org__m-9")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["org__m-large-1", "org__m2-1"]
