"""The postprocess stage through its public interface: each request gets its transforms, whatever else runs."""

import time

import numpy as np
import pytest

from sie_triton.contract import VERBS
from sie_triton.contract.spec import MuveraConfig, Profile
from sie_triton.contract.tensors import TIMING_FIELDS
from sie_triton.contract.transforms import Muvera
from sie_triton.errors import ModelError
from sie_triton.models.families import model_of
from sie_triton.pipeline.stages.context import Context, Contexts, timing_ms
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.records.traffic import TrafficWriter
from tests.support.stages import FakeRequest, computed, run, spec

MUVERA = MuveraConfig(num_repetitions=3, num_simhash_projections=2, final_projection_dim=None)
COLBERT = {"family": "multivector", "dims": {"multivector": 8, "muvera": MUVERA.dim(8)}, "muvera": MUVERA}


def vectors(options=None, **tensors):
    lengths = np.ones(len(tensors.get("multivector_lengths", tensors.get("dense"))), np.int32)
    return computed({"lengths": lengths, **tensors}, options=options or {})


@pytest.fixture
def seal(tmp_path):
    return Seal(tmp_path)


def test_muvera_distinguishes_queries_and_documents_in_one_batch(seal):
    rng = np.random.default_rng(0)
    lengths = [np.array(each, np.int32) for each in ([3, 5], [4], [2, 2, 9])]
    tokens = [rng.normal(size=(each.sum(), 8)).astype(np.float32) for each in lengths]
    is_query = [True, False, True]
    requests = [
        vectors({"is_query": flag}, multivector=rows, multivector_lengths=each)
        for flag, rows, each in zip(is_query, tokens, lengths, strict=True)
    ]
    answers = run(Postprocess(spec(**COLBERT), seal, TrafficWriter.private()), requests)
    muvera = Muvera(MUVERA, 8)
    for got, flag, rows, each in zip(answers, is_query, tokens, lengths, strict=True):
        np.testing.assert_allclose(got["muvera"], muvera.encode(rows, each, is_query=flag), rtol=1e-5, atol=1e-6)
        assert np.abs(got["muvera"] - muvera.encode(rows, each, is_query=not flag)).max() > 0.1


def test_truncated_items_are_reported_as_preprocess_found_them(seal):
    arrays = {"lengths": np.array([4, 9, 9], np.int32), "dense": np.ones((3, 2), np.float32)}
    request = computed(arrays, truncated=[1, 2])
    (answer,) = run(Postprocess(spec(), seal, TrafficWriter.private()), [request])
    assert answer["truncated"].dtype == np.bool_
    assert answer["truncated"].tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("parameters", "length"),
    [
        ({}, 1),
        ({"profile": "raw"}, 5),
        ({"profile": "raw", "normalize": True}, 1),
        ({"normalize": False}, 5),
        ({"normalize": False, "dimensions": 1}, 3),
        ({"dimensions": 1}, 1),
    ],
)
def test_normalization_follows_the_request_before_the_profile(seal, parameters, length):
    model = model_of(spec(profiles=(Profile(), Profile("raw", {"normalize": False}))))
    entered, _ = Contexts(model).enter(FakeRequest(parameters), VERBS["encode"])
    (got,) = run(
        Postprocess(model.spec, seal, TrafficWriter.private()),
        [vectors(entered.options, dense=np.array([[3.0, 4.0]], np.float32))],
    )
    assert np.linalg.norm(got["dense"]) == pytest.approx(length)


def test_timing_separates_queue_wait_from_batch_wait():
    now = time.monotonic_ns()
    times = {"arrived_ns": now - 100_000_000, "preprocessed_ns": now - 90_000_000}
    waits = {"queue_ns": 7_000_000, "batch_wait_ns": 11_000_000, "inference_ns": 13_000_000}
    timing = dict(
        zip(TIMING_FIELDS, timing_ms(Context(VERBS["encode"], {}, **times, **waits), now).tolist(), strict=True)
    )
    assert timing["queue"] == pytest.approx(7)
    assert timing["preprocess"] == pytest.approx(10)
    assert timing["batch_wait"] == pytest.approx(11)
    assert timing["inference"] == pytest.approx(13)
    assert 0 <= timing["postprocess"] <= timing["total"] - 99


def colbert(value, **parameters):
    """A request of two items of two vectors each."""
    rows, lengths = np.full((4, 8), value, np.float32), np.array([2, 2], np.int32)
    return vectors(parameters, multivector=rows, multivector_lengths=lengths)


@pytest.mark.parametrize("place", range(3))
def test_only_the_request_that_fails_encoding_gets_an_error(seal, monkeypatch, place):
    encode = Muvera.encode

    def fail_of_7(self, rows, lengths, **options):
        if (rows == 7).any():
            raise RuntimeError("secret detail")
        return encode(self, rows, lengths, **options)

    monkeypatch.setattr(Muvera, "encode", fail_of_7)
    requests = [colbert(7 if i == place else i + 1) for i in range(3)]
    answers = run(Postprocess(spec(**COLBERT), seal, TrafficWriter.private()), requests)
    assert isinstance(answers[place], ModelError)
    assert "secret" not in str(answers[place])
    assert [len(each["muvera"]) for i, each in enumerate(answers) if i != place] == [2, 2]
