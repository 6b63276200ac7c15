"""Postprocess through its public interface: a request's errors and options do not affect other requests."""

import numpy as np
import pytest

from sie_triton.contract.transforms import Muvera
from sie_triton.errors import ModelError
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.records.traffic import TrafficWriter
from tests.pure.pipeline.stages.test_postprocess import COLBERT, vectors
from tests.support.stages import run, spec


@pytest.fixture
def seal(tmp_path) -> Seal:
    return Seal(tmp_path)


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


def test_scales_come_only_with_scaled_outputs(seal):
    """The output of scales exists nevertheless, without rows."""
    stage = Postprocess(spec(**COLBERT, scaled=("multivector", "muvera")), seal, TrafficWriter.private())
    dtypes = ["float32", "float16", "int8", "uint8", "ubinary"]
    answers = run(stage, [colbert(3, output_dtype=dtype) for dtype in dtypes])
    found = {
        dtype: (len(each["multivector_scales"]), len(each["muvera_scales"]))
        for dtype, each in zip(dtypes, answers, strict=True)
    }
    assert found == {"float32": (0, 0), "float16": (0, 0), "int8": (4, 2), "uint8": (4, 2), "ubinary": (0, 0)}
