"""Recording by the library's own `torch.cuda.graph`, on streams and graphs that are not there; and what a failure of it
leaves behind."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.architectures import build
from sie_triton.engines.base import Unusable
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch import cuda_graphs, graph_comparison
from sie_triton.engines.torch.cuda_graphs import WARM_UPS, CapturedPasses, CudaGraphs
from sie_triton.engines.torch.graph_comparison import MOST_TRIES, may_have_graph, take_graph
from sie_triton.pipeline.worker import graphs as making
from sie_triton.pipeline.worker.graphs import Graphs
from tests.support.gpu_passes import encoder_of
from tests.support.pretended_gpu import PretendedGpu

DEVICE = torch.device("cuda:0")


class Cuda:
    """Fake of CUDA; `fault` is raised where a recording begins, or ends."""

    def __init__(self):
        self.usual = self.current = "usual stream"
        self.pools, self.streams, self.num_replayed = [], set(), 0
        self.fault, self.fault_at = None, ""

    @contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        self.streams.add(stream)
        try:
            yield
        finally:
            self.current = before

    def raise_at(self, place):
        if self.fault is not None and self.fault_at == place:
            raise self.fault


@pytest.fixture
def cuda(monkeypatch):
    there = Cuda()

    class Graph:
        def capture_begin(self, pool, **_):
            there.raise_at("begin")
            there.pools.append(pool)

        def capture_end(self):
            there.raise_at("end")

        def replay(self):
            there.num_replayed += 1

    class Stream:
        def __init__(self, *_):
            self.wait_stream = lambda _: None

    handles = iter(range(1, 100))
    usual = Stream()
    there.usual = there.current = usual
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "device", lambda _: there.on(there.current))
    monkeypatch.setattr(torch.cuda, "stream", there.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: there.current)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(handles)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
    cuda_graphs.stream_of.cache_clear()
    yield there
    cuda_graphs.stream_of.cache_clear()


def test_recordings_share_a_pool_and_a_stream(cuda):
    record, another, runs = CudaGraphs(DEVICE), CudaGraphs(DEVICE), []
    for which in (record, record, another):
        replay = which(lambda: runs.append(cuda.current) or torch.ones(1))
    assert cuda.pools == [(0, 1), (0, 1), (0, 2)]
    assert len(runs) == 3 * (WARM_UPS + 1)
    assert len(set(runs)) == 1
    assert cuda.usual not in runs
    assert cuda.current is cuda.usual
    assert replay().tolist() == [1]
    assert cuda.num_replayed == 1


@pytest.mark.parametrize("place", ["begin", "end"])
def test_a_recording_that_cannot_be_ended_makes_the_process_unusable(cuda, place):
    """The library restores nothing then: the thread's stream is still that of the recording."""
    cuda.fault, cuda.fault_at = RuntimeError("capture was invalidated"), place
    with pytest.raises(Unusable) as failed:
        CudaGraphs(DEVICE)(lambda: torch.ones(1))
    assert failed.value.__cause__ is cuda.fault


def test_a_function_that_fails_in_a_recording_leaves_all_as_it_was(cuda):
    runs = iter([*[torch.ones(1)] * WARM_UPS])

    def run():
        for states in runs:
            return states
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        CudaGraphs(DEVICE)(run)
    assert cuda.current is cuda.usual


class Pretended:
    """An encoder on a GPU that is not there, and recordings that fail so."""

    def __init__(self, monkeypatch, fault=None):
        self.fault, self.measurements = fault, Measurements()
        gpu, model = PretendedGpu(), build("BERT")
        with gpu.holding(model):
            pass
        self.gpu, self.encoder = gpu, encoder_of(model, gpu)
        monkeypatch.setattr(graph_comparison, "form_of", lambda *_: CapturedPasses(self.encoder, lambda: self.record))
        monkeypatch.setattr(graph_comparison, "ratio_at", lambda *_: 0.5)

    def record(self, run):
        if self.fault is not None:
            raise self.fault
        return run

    def take(self):
        with self.gpu:
            return take_graph(self.encoder, None, 1, self.measurements, "", None)

    @property
    def may(self):
        return may_have_graph(self.encoder, self.measurements, "")


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("of 2 GiB"), RuntimeError("CUDA error: busy")], ids=str)
def test_out_of_memory_does_not_rule_out_a_graph(monkeypatch, fault):
    pretended = Pretended(monkeypatch, fault)
    for _ in range(2 * MOST_TRIES):
        with pytest.raises(type(fault)):
            pretended.take()
        assert pretended.may
    pretended.fault = None
    assert pretended.take() == cuda_graphs.SIZES[-1]


def test_a_stored_measurement_survives_a_later_out_of_memory_error(monkeypatch):
    """A recording for use is no new measurement."""
    pretended = Pretended(monkeypatch)
    pretended.measurements.put(graph={"max_tokens": 64, "beside_others": 64})
    pretended.fault = torch.OutOfMemoryError()
    with pytest.raises(torch.OutOfMemoryError):
        pretended.take()
    assert pretended.encoder.graph is None
    pretended.fault = None
    assert pretended.take() == 64


def test_a_graph_with_wrong_results_is_refused_permanently(monkeypatch):
    pretended = Pretended(monkeypatch)
    pretended.record = lambda run: lambda: run() * 2
    assert pretended.take() == 0
    assert "differs from the packed path" in pretended.measurements.get("graph")["reason"]
    assert not pretended.may


def test_a_graph_that_spoils_each_process_is_given_up(monkeypatch):
    pretended = Pretended(monkeypatch, Unusable("a CUDA graph could not be ended"))
    for _ in range(MOST_TRIES):
        with pytest.raises(Unusable):
            pretended.take()
    assert pretended.take() == 0
    assert not pretended.may


def graphs_of(take_graph):
    freed = []
    engine = SimpleNamespace(
        graphs_are_files=False,
        may_have_graphs=lambda: {"": SimpleNamespace(weights_bytes=1)},
        take_graph=take_graph,
        used_bytes=lambda: 100,
        measurements=Measurements(),
        release_threads=lambda: None,
        free_unused_memory=lambda: freed.append(True),
    )
    made = Graphs(engine, SimpleNamespace(makes_graphs=True, graphs=Path("none"), threads=1, num_lanes=1))
    made._reached.set()
    return made, freed


@pytest.mark.parametrize(
    ("fault", "ended"), [(Unusable(), [1]), (torch.OutOfMemoryError(), [])], ids=["spoilt", "full"]
)
def test_only_a_broken_device_ends_the_process(monkeypatch, fault, ended):
    statuses = []
    monkeypatch.setattr(making, "end_process", statuses.append)

    def fail(*_):
        raise fault

    made, freed = graphs_of(fail)
    made._run()
    assert (statuses, freed) == (ended, [True])
    assert not made.are_made
    assert made.take_change() is None


def test_memory_is_freed_only_after_a_failure():
    made, freed = graphs_of(lambda *_: 64)
    made._run()
    assert freed == []
    assert made.take_change().max_tokens == 64
