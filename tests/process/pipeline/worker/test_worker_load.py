"""A worker's handling of a load order and of a batch, in this process and with a minimal family."""

import errno
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sie_triton.contract import Batch
from sie_triton.contract.spec import Runtime
from sie_triton.engines import Encoder, Engine
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.errors import InputError, LoadError
from sie_triton.models.inputs import KINDS
from sie_triton.pipeline.worker import __main__ as module
from sie_triton.pipeline.worker.calibration import (
    Calibration,
    MeasuredDevice,
    Sampler,
    calibrate,
    choose,
    faster_path,
    sizes,
)
from sie_triton.pipeline.worker.device_bytes import DeviceBytes
from sie_triton.pipeline.worker.graphs import Graphs
from sie_triton.pipeline.worker.messages import OUT_OF_MEMORY, Failed, Forward, Load, PassResult
from tests.support.family_double import NAME, OwnAdapter, OwnEngine
from tests.support.stages import spec

OWN = {"family": NAME, "dims": {"dense": 2, "tags": 4}, "engine": "tests.support.family_double:OwnEngine"}


DEVICE = MeasuredDevice(Engine(spec(), "cpu", Measurements()), 1)


@pytest.fixture
def calibrated(monkeypatch):
    """List the requested calibrations: sampler and limit."""
    asked = []
    monkeypatch.setattr(
        module, "calibrate", lambda _, sampler, limit, *__: asked.append((sampler, limit)) or Calibration(33, 9.0, 0.5)
    )
    monkeypatch.setattr(OwnEngine, "used_bytes", lambda _: 1234)
    return asked


def load(tmp_path, of, device="cpu", num_lanes=2):
    order = Load(of.to_json(), tmp_path, device, tmp_path / "cache", tmp_path / "locks" / "m", num_lanes, 1)
    return module.load(order)


def test_a_lane_is_calibrated_for_its_share_of_the_batch_cost(tmp_path, calibrated):
    of = spec(**OWN, max_batch_cost=101, max_sequence_length=7, batch_cost="attention")
    engine, adapter, loaded = load(tmp_path, of)
    assert (type(engine), type(adapter)) == (OwnEngine, OwnAdapter)
    assert (loaded.sub_batch_cost, loaded.cost_per_s, loaded.least_s) == (33, 9.0, 0.5)
    ((sampler, limit),) = calibrated
    assert limit == 50
    assert (sampler.outputs, sampler.max_length) == ({"dense", "tags"}, 7)
    assert sampler.cost(np.array([512], np.int32)).tolist() == [512]
    assert sampler.cost(np.array([64], np.int32)).tolist() == [8]
    assert list(loaded.seconds) == ["imports", "predecessor", "weights", "calibration"]


def test_nothing_is_calibrated_where_a_size_is_set(tmp_path, calibrated):
    _, _, loaded = load(tmp_path, spec(**{**OWN, "runtime": Runtime(max_sub_batch_cost=50)}))
    assert (calibrated, loaded.sub_batch_cost, loaded.cost_per_s) == ([], 0, 0.0)


@pytest.mark.parametrize(("device", "on_device"), [("cpu", 0), ("cuda:0", 1234)])
def test_memory_of_a_device_is_counted_there_only(tmp_path, calibrated, device, on_device):
    assert load(tmp_path, spec(**OWN), device)[2].device_bytes == on_device


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_memory_of_trial_passes_is_freed_before_it_is_counted(tmp_path, calibrated, monkeypatch, device):
    done = []
    monkeypatch.setattr(OwnEngine, "free_unused_memory", lambda _: done.append("freed"))
    monkeypatch.setattr(OwnEngine, "used_bytes", lambda _: done.append("counted") or 1234)
    loaded = load(tmp_path, spec(**OWN), device)[2]
    assert done.index("counted") == done.count("freed") == 1
    assert loaded.need_bytes == (1234 if device == "cpu" else 0)


def test_out_of_memory_in_trial_passes_is_not_blamed_on_the_weights(tmp_path, calibrated, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(module, "calibrate", fail)
    with pytest.raises(LoadError, match="not enough memory for a forward pass beside the weights") as caught:
        load(tmp_path, spec(**OWN))
    assert caught.value.reason == OUT_OF_MEMORY


def test_out_of_memory_is_recognised_in_the_first_error(tmp_path, calibrated, monkeypatch):
    def fail(*_):
        raise LoadError("weights cannot be loaded", "corrupt") from MemoryError()

    monkeypatch.setattr(module, "load_adapter", fail)
    with pytest.raises(LoadError) as caught:
        load(tmp_path, spec(**OWN))
    assert caught.value.reason == OUT_OF_MEMORY


def test_another_error_of_a_load_is_reported_unchanged(tmp_path, calibrated):
    with pytest.raises(LoadError, match=r"dense\.dim: the model file says 3, but the weights give 2") as caught:
        load(tmp_path, spec(**{**OWN, "dims": {"dense": 3}}))
    assert caught.value.reason == "unsupported"


BROKEN = [
    ("cpu", None, False),
    ("cuda:1", None, False),
    ("cuda:1", torch.AcceleratorError("CUDA error: device-side assert triggered"), True),
]


class Adapter(OwnAdapter):
    def __init__(self, error):
        self._error = error

    def forward(self, batch):
        raise self._error


class Freeing(OwnEngine):
    def __init__(self):
        self.freed = 0

    def free_unused_memory(self):
        self.freed += 1


@pytest.mark.parametrize(
    ("error", "reason", "freed"), [(MemoryError(), OUT_OF_MEMORY, 1), (RuntimeError("secret detail"), None, 0)]
)
def test_a_failed_pass_is_reported_without_details_and_memory_is_freed_if_short(error, reason, freed):
    engine = Freeing()
    failed = module.compute(engine, Adapter(error), sampler().batch(9), Graphs(engine, None))
    assert isinstance(failed, Failed)
    assert "secret" not in failed.message
    assert (failed == module.NO_MEMORY) == (reason == OUT_OF_MEMORY)
    assert engine.freed == freed


class Ended(BaseException):
    """Raised instead of ending this process."""


class Broken(Freeing):
    """An engine whose device an error has made unusable."""

    def is_broken(self, error):
        return True


@pytest.fixture
def ends(monkeypatch):
    """Raise Ended instead of exiting; list the exit statuses."""
    statuses = []

    def end(status):
        statuses.append(status)
        raise Ended

    monkeypatch.setattr(module.os, "_exit", end)
    return statuses


@pytest.mark.parametrize("error", [RuntimeError("device-side assert triggered"), MemoryError()])
def test_a_worker_exits_without_a_response_if_its_device_is_unusable(ends, caplog, error):
    """Its stage then starts a replacement and repeats the pass."""
    with pytest.raises(Ended):
        module.compute(Broken(), Adapter(error), sampler().batch(9), Graphs(Broken(), None))
    assert ends == [1]
    assert "a replacement is started" in caplog.messages[-1]


def test_an_invalid_request_does_not_end_the_worker(ends):
    answer = module.compute(Broken(), Adapter(InputError("x: wrong")), sampler().batch(9), Graphs(Broken(), None))
    assert isinstance(answer, Failed)
    assert ends == []


@pytest.mark.parametrize(("device", "error", "is_broken"), BROKEN)
def test_a_device_is_unusable_if_its_stream_cannot_be_waited_for(monkeypatch, device, error, is_broken):
    def synchronize():
        if error:
            raise error

    stream = SimpleNamespace(synchronize=synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", {"cuda:1": stream}.__getitem__)
    assert TorchEngine(spec(), device, Measurements()).is_broken(RuntimeError()) is is_broken
    assert not OwnEngine(spec(), device, Measurements()).is_broken(RuntimeError())


@pytest.mark.parametrize(
    ("num_lanes", "share", "given", "are_made", "used"),
    [(2, 1, 2, False, 2), (2, 1, 2, True, 1), (1, 1, 1, True, 1), (2, 4, 8, True, 7), (2, 4, 4, True, 4)],
)
def test_a_pass_with_all_threads_leaves_one_for_graph_export(
    tmp_path, monkeypatch, num_lanes, share, given, are_made, used
):
    """The lane keeps no threads of its own in between."""
    order = Load(spec(**OWN).to_json(), tmp_path, "cpu", tmp_path, tmp_path, num_lanes, share)
    did, graphs = [], Graphs(None, order)
    graphs.are_made = are_made

    class Noting:
        use_threads = staticmethod(did.append)

        def release_threads(self):
            did.append("released")

    class Lane:
        """A lane that delivers one batch and then ends."""

        send = staticmethod(did.append)

        def poll(self, seconds):
            return True

        def recv(self):
            if not self.batches:
                raise EOFError
            return self.batches.pop()

    monkeypatch.setattr(module, "compute", lambda *_: "answer")
    lane = Lane()
    lane.batches = [Forward(None, given)]
    module.serve(Noting(), None, lane, graphs, None)
    released = ["released"] if are_made else []
    assert did == [*released, used, "answer", *released]


@pytest.mark.parametrize("place", ["recv", "send"])
@pytest.mark.parametrize(
    ("error", "statuses"), [(EOFError(), []), (BrokenPipeError(), []), (OSError(errno.EMFILE, "too many files"), [1])]
)
def test_a_lane_that_fails_ends_the_worker_unless_its_stage_has_closed_it(
    tmp_path, monkeypatch, ends, place, error, statuses
):
    """Its stage would wait for an answer until the time limit."""

    def fail(*_):
        raise error

    graphs = Graphs(None, Load(spec(**OWN).to_json(), tmp_path, "cpu", tmp_path, tmp_path, 2, 1))
    lane = SimpleNamespace(poll=lambda _: True, recv=lambda: Forward(None, 1), send=lambda _: None)
    setattr(lane, place, fail)
    monkeypatch.setattr(module, "compute", lambda *_: "answer")
    engine = SimpleNamespace(use_threads=lambda _: None)
    with pytest.raises(Ended) if statuses else nullcontext():
        module.serve(engine, None, lane, graphs, None)
    assert ends == statuses


def sampler():
    return module.sampler_of(spec(**OWN, max_sequence_length=7), adapter())


def adapter():
    """An adapter without an encoder."""
    return OwnAdapter.__new__(OwnAdapter)


def test_a_calibration_batch_has_the_form_of_a_request_batch():
    made = sampler()
    assert isinstance(made, Sampler)
    for total in (1, 5, 100):
        batch = made.batch(total)
        _, lengths = batch.features["letters"]
        assert lengths.sum() == total
        assert isinstance(batch, Batch)
        assert len(batch.options) == batch.num_items == len(lengths)
        assert set(batch.features) == {"letters", "pairs", "weight"}
        assert len(adapter().forward(batch)["dense"]) == len(lengths)


def test_stored_measurements_are_reused(monkeypatch):
    measurements = Measurements()
    rates = {"77": 5.0, "154": 5.1}
    known = {"sub_batch_cost": 77, "path": "other", "cost_per_s": rates, "least_s": 0.5, "pass_bytes": 9}
    measurements.put(calibration_1_lanes=known)
    used = OwnAdapter(Encoder())
    monkeypatch.setattr(used, "forward", lambda _: pytest.fail("it is known"))
    assert calibrate(used, sampler(), 500, measurements, DEVICE) == Calibration(77, 5.0, 0.5, 9)
    assert used.encoder.path == "other"


def test_the_memory_of_the_largest_pass_is_measured():
    """The pass with the longest items counts, even if typical ones take little."""
    made = replace(sampler(), kind=KINDS["text"], max_length=64)
    assert made.batch(300, is_longest=True).features["letters"].lengths.tolist() == [44, 64, 64, 64, 64]

    def forward(batch):
        if (batch.features["letters"].lengths >= 44).all():
            np.ones(64_000_000 // 8)  # beyond the size that malloc may take from memory that it has already

    assert 55e6 < DEVICE.pass_bytes(forward, made, 300) < 110e6
    assert MeasuredDevice(Engine(spec(), "cuda:0", Measurements()), 1).pass_bytes(pytest.fail, made, 300) == 0


def test_sizes_double_up_to_the_limit():
    assert list(sizes(1000)) == [256, 512, 1000]
    assert list(sizes(256)) == [256]
    assert list(sizes(100)) == [100]
    assert choose({256: 97.0, 512: 100.0}) == 256
    assert choose({256: 96.0, 512: 100.0}) == 512


def test_a_single_path_is_not_measured():
    assert faster_path(OwnAdapter(Encoder()), None, DEVICE) == "only"


def test_a_pass_returns_the_rows_of_the_adapter():
    used, batch = adapter(), sampler().batch(9)
    found = module.compute(Freeing(), used, batch, Graphs(Freeing(), None))
    assert isinstance(found, PassResult)
    assert {name: rows.tolist() for name, rows in found.rows.items()} == {
        name: rows.tolist() for name, rows in used.forward(batch).items()
    }


def test_changed_device_memory_is_reported_at_most_once_a_second(monkeypatch):
    now, used = [0.0], [100]
    monkeypatch.setattr(OwnEngine, "used_bytes", lambda _: used[0])
    engine = OwnEngine(spec(), "cuda:0", Measurements())
    memory = DeviceBytes(engine, 100, lambda: now[0])
    told = []
    for now[0], used[0] in [(0.5, 150), (1.0, 150), (1.5, 200), (2.0, 200), (3.0, 200), (4.0, 90)]:
        told.append(memory.take_change())
    assert told == [0, 150, 0, 200, 0, 90]
    assert DeviceBytes(OwnEngine(spec(), "cpu", Measurements()), 0, iter([0.0, 9.0]).__next__).take_change() == 0
