"""Calibration: measured once, kept, and measured again on request."""

import json

import numpy as np
import pytest

from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.engines import Engine
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.encoder import PACKED, PADDED
from sie_triton.models.families import family
from sie_triton.models.families.shared.token_batch import tokens as tokens_of
from sie_triton.models.inputs import KINDS
from sie_triton.pipeline.limits import WorkerLimits
from sie_triton.pipeline.scheduling import COST_FUNCTIONS
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.worker import calibration
from sie_triton.pipeline.worker.__main__ import load
from sie_triton.pipeline.worker.calibration import MeasuredDevice, Sampler, calibrate, calibration_name, choose, measure
from sie_triton.pipeline.worker.messages import Load
from sie_triton.records.status import StatusWriter
from sie_triton.system.host import core_time
from tests.support.environments import loader_of
from tests.support.stages import spec


def sampler(max_length, unit):
    of = family("sentence_transformer")
    return Sampler(of.sample, KINDS["text"], frozenset({"dense"}), max_length, COST_FUNCTIONS[unit])


TOKENS = sampler(512, "tokens")

DEVICE = MeasuredDevice(Engine(spec(), "cpu", Measurements()), 1)


class FakeAdapter:
    """Its passes move the clock `now`, in seconds: by a fixed part, and by one a token that grows past 1,024 tokens."""

    def __init__(self, padded_is=1.0, path=PACKED):
        self.encoder, self.path, self.padded_is, self.passes = self, path, padded_is, 0
        self.now = 0.0
        self.paths = (PACKED, PADDED) if path == PACKED else (path,)
        self.limits, self.weights_bytes, self.sample = {}, 0, None

    def use(self, path):
        self.path = path

    def forward(self, batch):
        self.passes += 1
        tokens = len(tokens_of(batch)[0])
        seconds = 2e-3 + tokens * 5e-6 * (1 if tokens <= 1024 else 2)
        self.now += seconds * (self.padded_is if self.path == PADDED else 1)


@pytest.fixture
def timed_adapter(monkeypatch):
    """Make a FakeAdapter whose clock is the one that calibration reads."""

    def make(*args):
        return clocked(FakeAdapter(*args), monkeypatch)

    return make


def clocked(adapter, monkeypatch):
    """Let calibration read the adapter's clock; no other thread takes a core."""
    for module in (calibration, core_time):
        monkeypatch.setattr(module, "perf_counter", lambda: adapter.now)
    monkeypatch.setattr(core_time, "waited_s", lambda: 0.0)
    return adapter


def test_the_size_is_measured_once_and_kept(tmp_path, timed_adapter):
    adapter, path = timed_adapter(), tmp_path / "m.json"
    assert calibrate(adapter, TOKENS, 4096, Measurements(path), DEVICE).sub_batch_cost == 1024
    passes = adapter.passes
    assert calibrate(adapter, TOKENS, 4096, Measurements(path), DEVICE).sub_batch_cost == 1024
    assert adapter.passes == passes
    kept = json.loads(path.read_text())["calibration_1_lanes"]
    assert kept["sub_batch_cost"] == 1024
    assert "256" in kept["cost_per_s"]
    again = calibrate(adapter, TOKENS, 4096, Measurements(path), DEVICE)
    assert (
        again.cost_per_s
        == kept["cost_per_s"]["1024"]
        == pytest.approx(1024 / (2e-3 + 1024 * 5e-6 + WorkerLimits.around_pass_s), rel=0.01)
    )
    assert again.least_s == kept["least_s"] == pytest.approx(2e-3 + 5e-6)  # one token
    calibrate(adapter, TOKENS, 4096, Measurements(path, redo=True), DEVICE)
    assert adapter.passes > passes


def test_it_is_measured_again_where_an_earlier_version_did_not_measure_the_shortest_pass(timed_adapter):
    measurements = Measurements()
    measurements.put(calibration_1_lanes={"sub_batch_cost": 77, "path": PACKED, "cost_per_s": {"77": 5.0}})
    assert calibrate(timed_adapter(), TOKENS, 4096, measurements, DEVICE).sub_batch_cost == 1024


def test_it_is_measured_again_for_another_number_of_lanes(timed_adapter):
    """Each of two lanes may take half as much; what one lane may take is not forgotten."""
    adapter, measurements, two = timed_adapter(), Measurements(), MeasuredDevice(DEVICE.engine, 2)
    assert calibrate(adapter, TOKENS, 4096, measurements, DEVICE).sub_batch_cost == 1024
    assert calibrate(adapter, TOKENS, 512, measurements, two).sub_batch_cost == 512
    passes = adapter.passes
    assert calibrate(adapter, TOKENS, 4096, measurements, DEVICE).sub_batch_cost == 1024
    assert calibrate(adapter, TOKENS, 512, measurements, two).sub_batch_cost == 512
    assert adapter.passes == passes


@pytest.mark.parametrize("unit", COST_FUNCTIONS)
def test_calibration_and_planning_use_the_same_unit_of_cost(tmp_path, tiny_directory, monkeypatch, unit):
    """The device is best at 1,024 units at once and slows beyond; the size chosen is just that, whatever the unit."""
    adapter, cost = FakeAdapter(), COST_FUNCTIONS[unit]
    monkeypatch.setattr("sie_triton.pipeline.worker.__main__.load_adapter", lambda *_: adapter)
    seconds = {256: 0.03, 512: 0.05, 1024: 0.09, 2048: 0.2}
    timed = lambda _, batch: seconds[min(seconds, key=lambda size: abs(size - cost(tokens_of(batch)[1]).sum()))]  # noqa: E731
    monkeypatch.setattr(calibration, "timed", timed)
    monkeypatch.setattr(adapter, "forward", lambda _: None)
    spec = ModelSpec("m", "", "sentence_transformer", {"dense": 64}, 512, 4096, unit, runtime=Runtime("cpu"))
    order = Load(spec.to_json(), tiny_directory, "cpu", tmp_path / "cache", tmp_path / "lock", 2, 1)
    _, _, loaded = load(order)
    assert loaded.sub_batch_cost == 1024


@pytest.mark.parametrize(
    ("padded_is", "start", "chosen"), [(0.5, PACKED, PADDED), (1.0, PACKED, PACKED), (0.5, PADDED, PADDED)]
)
def test_the_faster_path_is_taken_where_there_are_two(timed_adapter, padded_is, start, chosen):
    adapter = timed_adapter(padded_is, start)
    calibrate(adapter, TOKENS, 1024, Measurements(), DEVICE)
    assert adapter.path == chosen


def test_a_slow_model_is_not_measured_for_long(monkeypatch):
    monkeypatch.setattr(calibration, "timed", lambda *_: 1.0)
    assert list(measure(lambda _: None, TOKENS, 16384, DEVICE)) == [256]


def test_no_size_is_measured_that_would_take_too_long(timed_adapter):
    """Passes of 512 tokens take 200 ms, so those of 1,024 would take 400; a small request waits 300 at most."""
    adapter = timed_adapter()
    adapter.forward = lambda batch: setattr(adapter, "now", adapter.now + 0.2 * len(tokens_of(batch)[0]) / 512)
    assert list(measure(adapter.forward, TOKENS, 16384, DEVICE)) == [256, 512]


class Freeing(Engine):
    """Counts how often memory was freed."""

    freed = 0

    def free_unused_memory(self):
        self.freed += 1


def short_of(num_tokens, padded_at=10**9):
    """Adapter whose passes of so many tokens run out of memory; padded ones even earlier."""
    adapter = FakeAdapter(0.5)
    forward = adapter.forward

    def limited(batch):
        if len(tokens_of(batch)[0]) >= (padded_at if adapter.path == PADDED else num_tokens):
            raise MemoryError
        forward(batch)

    adapter.forward = limited
    return adapter


@pytest.mark.parametrize(("num_lanes", "sizes"), [(1, [256, 512, 1024]), (2, [256, 512])])
def test_a_size_without_memory_for_it_ends_the_doubling(num_lanes, sizes):
    """Earlier measurements stay if each lane can run that size at the same time as the others."""
    engine = Freeing(spec(), "cuda:0", Measurements())
    assert list(measure(short_of(2048).forward, TOKENS, 16384, MeasuredDevice(engine, num_lanes))) == sizes
    assert engine.freed == 1


def test_the_smallest_size_must_fit():
    first = iter([True])

    def forward(batch):
        if not next(first, False):
            raise MemoryError

    with pytest.raises(MemoryError):
        measure(forward, TOKENS, 16384, MeasuredDevice(Freeing(spec(), "cuda:0", Measurements()), 2))


@pytest.mark.parametrize(("num_tokens", "padded_at"), [(2048, 2048), (10**9, 256)])
def test_a_size_chosen_while_memory_is_short_is_not_stored(monkeypatch, num_tokens, padded_at):
    adapter, measurements = clocked(short_of(num_tokens, padded_at), monkeypatch), Measurements()
    device = MeasuredDevice(Freeing(spec(), "cuda:0", Measurements()), 1)
    assert calibrate(adapter, TOKENS, 4096, measurements, device).sub_batch_cost == 1024
    assert adapter.path == (PACKED if padded_at == 256 else PADDED)
    assert measurements.get(calibration_name(DEVICE.num_lanes)) is None


def test_trial_pass_errors_other_than_out_of_memory_are_raised():
    def forward(batch):
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError):
        MeasuredDevice(Freeing(spec(), "cuda:0", Measurements()), 1).shortest(forward, TOKENS.batch(256), 1)


def test_the_smallest_size_that_is_good_enough():
    assert choose({256: 80.0, 512: 98.0, 1024: 100.0}) == 512


def test_the_overhead_of_a_sub_batch_favours_larger_ones(monkeypatch):
    """Passes of MiniLM, of which 256 tokens are within 3 % of 512 for their own."""
    seconds = {256: 0.0684, 512: 0.1337, 1024: 0.2695}
    monkeypatch.setattr(calibration, "timed", lambda _, batch: seconds[len(tokens_of(batch)[0])])
    assert choose({size: size / each for size, each in seconds.items()}) == 256
    assert choose(measure(lambda _: None, TOKENS, 16384, DEVICE)) == 512


@pytest.mark.parametrize("unit", COST_FUNCTIONS)
def test_samples_have_the_cost_asked_for_and_legal_lengths(unit):
    for total in (256, 1000, 4096):
        _, lengths = tokens_of(sampler(200, unit).batch(total))
        assert COST_FUNCTIONS[unit](lengths).sum() == total
        assert 1 <= lengths.min() <= lengths.max() <= 200
        assert np.all(np.diff(lengths) >= 0)


def test_measurements_are_of_one_model_on_one_machine(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}")

    def of(*settings, redo=False):
        return Measurements.of(tmp_path / "cache", "org/m", tmp_path / "weights", settings, redo=redo)

    of("cpu").put(probe=1)
    assert of("cpu").get("probe") == 1
    assert of("cuda").get("probe") is None
    assert of("cpu", redo=True).get("probe") is None
    (tmp_path / "weights" / "config.json").write_text('{"new": 1}')
    assert of("cpu").get("probe") is None


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path):
    (tmp_path / "file").write_text("")
    measurements = Measurements(tmp_path / "file" / "m.json")
    measurements.put(probe=1)
    assert measurements.get("probe") == 1


def test_processes_that_share_a_file_lose_nothing_of_each_other(tmp_path):
    one, other, again = (Measurements(tmp_path / "m.json", redo=redo) for redo in (False, False, True))
    one.put(probe=1, graph=1)
    other.put(calibration=2)
    one.put(probe=None)
    kept = Measurements(tmp_path / "m.json")
    assert [kept.get(name) for name in ("probe", "graph", "calibration")] == [None, 1, 2]
    again.put(probe=3)
    again.put(calibration=4)
    kept = Measurements(tmp_path / "m.json")
    assert [kept.get(name) for name in ("probe", "graph", "calibration")] == [3, None, 4]


@pytest.mark.usefixtures("tokenizers_made_here")
def test_servers_may_share_what_they_have_measured(tmp_path, tiny_directory, monkeypatch):
    runtime = Runtime("cpu", measurements_dir=str(tmp_path / "shared"))
    spec = ModelSpec("m", str(tiny_directory), "sentence_transformer", {"dense": 64}, 128, 512, runtime=runtime)
    first, second = (loader_of(spec, tmp_path / name).order(1, 1) for name in ("first", "second"))
    measured = load(first)[-1]
    monkeypatch.setattr(calibration, "measure", None)  # must not be called
    assert load(second)[-1].sub_batch_cost == measured.sub_batch_cost
    assert len(list((tmp_path / "shared").iterdir())) == 1
    assert first.graphs.relative_to(tmp_path / "first") == second.graphs.relative_to(tmp_path / "second")


def test_a_loaded_model_is_calibrated_unless_a_size_is_set(tmp_path, tiny_directory, fork_server_directory):
    for size, calibrated in ((0, True), (300, False)):
        runtime = Runtime(device="cpu", cache_dir=str(tmp_path / str(size)), max_sub_batch_cost=size)
        spec = ModelSpec("m", str(tiny_directory), "sentence_transformer", {"dense": 64}, 128, 16384, runtime=runtime)
        stage = Inference(spec, "cpu", StatusWriter(fork_server_directory, f"calibrated{size}", "inference", 0))
        stage.warm_up()
        stage.close()
        stage.status.remove()
        (kept,) = (json.loads(path.read_text()) for path in (tmp_path / str(size) / "measurements").iterdir())
        assert kept["probe"]["path"] == PACKED
        assert any(name.startswith("calibration") for name in kept) == calibrated
        if not calibrated:
            assert stage._budget_of_lanes == size
