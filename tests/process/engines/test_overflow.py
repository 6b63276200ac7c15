"""Numbers outside float16's range are detected when a model is loaded, and never returned to a client."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sie_triton.contract import Batch, Ragged
from sie_triton.contract.spec import Runtime
from sie_triton.engines.base import Encoder, Overflow
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch import engine as engine_module
from sie_triton.engines.torch.draws import Draws
from sie_triton.engines.torch.encoder import PACKED, PADDED
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.probe import choose_path, probe
from sie_triton.errors import LoadError, ModelError
from sie_triton.models.families import Adapter, family, load_adapter
from sie_triton.models.families.grounding_dino.adapter import Text
from sie_triton.models.families.grounding_dino.adapter import _seen as grounding_dino
from sie_triton.models.families.owlv2.adapter import OwlAdapter
from sie_triton.models.families.shared.labels.words import states_at
from sie_triton.models.families.shared.objects import tensors
from sie_triton.pipeline.worker import __main__ as worker
from sie_triton.pipeline.worker.graphs import Graphs
from sie_triton.pipeline.worker.messages import Failed, PassResult
from tests.support.models import small_bert
from tests.support.stages import spec

NAN, INFINITE = float("nan"), float("inf")


class Spoiling:
    """Every state is 1, except those of items of more than 35 tokens: each path sets its own."""

    draws, num_weights, padding_position = Draws(100), 10**9, -1
    config = SimpleNamespace(get_text_config=lambda: None)

    def __init__(self, dtype=torch.float32, **long):
        self.dtype, self._long, self.paths = dtype, long, (PACKED, PADDED)

    def prepare(self):
        pass

    def use(self, path):
        self._path = path

    def eager(self, item, keys):
        return self._states(len(item), "eager")

    def hidden_states(self, input_ids, lengths, keys):
        return torch.cat([self._states(n, self._path) for n in lengths.tolist()])

    def _states(self, length, path):
        said = self._long.get(path, 1)
        if isinstance(said, Exception):
            raise said
        return torch.full((length, 4), float(said if length > 35 else 1)).to(self.dtype)


@pytest.mark.parametrize("bad", [NAN, INFINITE])
def test_states_that_are_not_finite_are_not_accepted_as_packed(bad):
    verdict = probe(Spoiling(packed=bad), 256)
    assert (verdict.path, verdict.error) == (PADDED, 0)
    assert verdict.reason == "packed, it computes numbers that are not finite, or transformers does"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [{"packed": NAN, "padded": NAN}, {"eager": NAN}, {"eager": INFINITE}], ids=str)
def test_a_model_without_finite_states_is_refused(dtype, bad):
    with pytest.raises(LoadError, match=r"is not what transformers computes: packed, it .* not finite") as caught:
        probe(Spoiling(dtype, **bad), 256)
    assert not isinstance(caught.value, Overflow)


@pytest.mark.parametrize(
    "bad", [{"packed": NAN}, {"packed": ValueError(), "padded": INFINITE}, {"eager": NAN}], ids=str
)
def test_non_finite_states_in_float16_raise_overflow(bad):
    measurements = Measurements()
    with pytest.raises(Overflow):
        choose_path(Spoiling(torch.float16, **bad), 256, measurements)
    assert measurements.get("probe") is None


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (ImportError("undefined symbol"), False),
        (OSError("libcudart.so.12: cannot open shared object file"), False),
        (torch.AcceleratorError("CUDA error: no kernel image is available for execution on the device"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), False),
        (RuntimeError("shape mismatch"), True),
        (TypeError("unexpected argument"), True),
    ],
    ids=str,
)
def test_a_probe_result_is_not_stored_after_a_machine_fault(caplog, error, is_kept):
    measurements = Measurements()
    assert choose_path(Spoiling(packed=error), 256, measurements).path == PADDED
    assert (measurements.get("probe") is not None) == is_kept
    assert bool(caplog.records) != is_kept
    # After the repair.
    assert choose_path(Spoiling(), 256, measurements).path == (PADDED if is_kept else PACKED)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")],
    ids=str,
)
@pytest.mark.parametrize("path", ["eager", "packed"])
def test_out_of_memory_aborts_the_probe(error, path):
    """The load can be repeated, but a recorded verdict would stay."""
    with pytest.raises(type(error)):
        probe(Spoiling(**{path: error}), 256)


def test_settings_with_which_transformers_fails_are_reported():
    with pytest.raises(LoadError, match=r"^transformers cannot compute this model: dropout p.* got nan$") as told:
        probe(Spoiling(eager=RuntimeError("dropout probability must be between 0 and 1, got nan\nException")), 256)
    assert told.value.is_permanent


@pytest.fixture
def large(tmp_path):
    """A model whose states exceed float16's range between two layers."""
    model = small_bert(32, 64)
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.weight.mul_(100)
        model.encoder.layer[0].output.dense.weight.mul_(1e5)
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def float16(monkeypatch):
    """Choose float16, as on a GPU if the model file names no precision or float16."""
    monkeypatch.setattr(engine_module, "choose_dtype", lambda *_: torch.float16)


def engine_of(measurements, precision=""):
    return TorchEngine(spec(max_sequence_length=64, runtime=Runtime(precision=precision)), "cpu", measurements)


class Pooling(Adapter):
    def __init__(self, encoder, engine):
        super().__init__(encoder)
        self.dtype = engine.dtype

    def forward(self, batch):
        raise AssertionError("these tests run no pass")


@pytest.fixture
def loads(monkeypatch):
    """List the dtypes in which the family's weights are loaded."""
    dtypes = []

    def load(spec, directory, engine):
        dtypes.append(engine.dtype)
        encoder = engine.encoder(engine.load(directory))
        engine.settle(encoder)
        return Pooling(encoder, engine)

    monkeypatch.setattr(family("sentence_transformer"), "load", load)
    monkeypatch.setattr("sie_triton.models.families.check_dims", lambda *_: None)
    return dtypes


def test_a_model_that_overflows_in_float16_is_loaded_again_in_bfloat16(large, float16, loads, caplog):
    measurements = Measurements()
    adapter = load_adapter(engine_of(measurements).spec, large, engine_of(measurements))
    assert loads == [torch.float16, torch.bfloat16]
    assert (adapter.encoder.dtype, adapter.encoder.path) == (torch.bfloat16, PACKED)
    assert "float16 does not hold this model's numbers: using bfloat16" in caplog.text
    states = adapter.encoder.hidden_states(np.full(40, 7, np.int32), np.array([40], np.int32))
    assert states.isfinite().all()
    loads.clear()
    load_adapter(engine_of(measurements).spec, large, engine_of(measurements))
    assert loads == [torch.bfloat16], "the next process knows"


def test_a_model_that_overflows_in_requested_float16_is_refused(large, float16, loads):
    engine = engine_of(Measurements(), "float16")
    with pytest.raises(LoadError, match=r"float16 cannot be served: .*; write compute_precision: bfloat16 into"):
        load_adapter(engine.spec, large, engine)
    assert loads == [torch.float16]


def test_a_part_that_was_compared_in_float16_is_compared_again(float16):
    measurements = Measurements()
    engine = engine_of(measurements)
    measurements.put(probe_texts={"path": PACKED})
    engine._settled["texts"] = None
    engine.widen()
    assert measurements.get("probe_texts") is None
    assert engine.dtype is torch.bfloat16


class Answering(Adapter):
    def __init__(self, rows):
        super().__init__(Encoder())
        self._rows = rows

    def forward(self, batch):
        return self._rows


def answer(rows, **features):
    batch = Batch({name: Ragged(values) for name, values in features.items()}, np.zeros(1, np.bool_))
    return worker.compute(engine_of(Measurements()), Answering(rows), batch, Graphs(None, None))


@pytest.mark.parametrize("bad", [NAN, INFINITE, -INFINITE])
def test_an_answer_that_is_not_finite_is_an_error(bad):
    rows = {"dense": np.array([[1, 2], [bad, 4]], np.float32)}
    failed = answer(rows)
    assert failed.kind == ModelError.kind
    assert failed.message.startswith("dense: the model computed numbers that are not finite; if its compute_precision")


def test_nan_for_a_missing_label_threshold_is_no_error():
    none = np.array([NAN], np.float32)
    rows = {"label_thresholds": none, "spans": np.ones(3, np.int32), "text": np.frombuffer(b"x", np.uint8)}
    assert isinstance(answer(rows, label_thresholds=none), PassResult)


@pytest.mark.parametrize(("place", "is_refused"), [(1, True), (2, False)])
def test_states_of_words_and_labels_that_are_not_finite_are_an_error(place, is_refused):
    """Otherwise no comparison with a threshold would succeed, and the result would be empty without an error."""
    ids, places, one = np.zeros(3, np.int32), np.array([1], np.int32), np.array([1], np.int32)
    features = {"input_ids": Ragged(ids, np.array([3], np.int32)), "word_tokens": Ragged(places, one)}
    hidden = torch.zeros(3, 2)
    hidden[place] = NAN
    with pytest.raises(ModelError, match=r"word_tokens: .* not finite") if is_refused else nullcontext():
        states_at(hidden, Batch(features, np.zeros(1, np.bool_)), "word_tokens")


def test_objects_whose_scores_are_not_finite_are_an_error():
    """One of two boxes is not finite; the other is below its threshold and is dropped."""
    text = Text(np.array([5], np.int32), np.array([1], np.int32), np.array([0.5], np.float32))
    logits, boxes = np.array([[NAN], [-9]], np.float32), np.full((2, 4), 0.5, np.float32)
    seen = grounding_dino(logits, boxes, text, np.array([8, 8], np.int32), {})
    assert np.isnan(seen.scores).tolist() == [True]
    assert isinstance(answer(tensors([seen])), Failed)
    best = SimpleNamespace(
        _class_head=lambda *_: (torch.from_numpy(logits[None]), None), _files=SimpleNamespace(pads_to_square=True)
    )
    seen = OwlAdapter._seen(
        best, torch.zeros(2, 4), boxes, torch.zeros(1, 4), text.thresholds, np.array([8, 8], np.int32), {}
    )
    assert isinstance(answer(tensors([seen])), Failed)
