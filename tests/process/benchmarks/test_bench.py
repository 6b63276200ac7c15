"""Benchmarks measure what the server does."""

import numpy as np

from benchmarks.lanes import Lanes, median_ratio
from benchmarks.texts import texts
from sie_triton.contract.spec import Runtime
from sie_triton.models.catalog import recognise


def test_lanes_compute_what_the_library_does(minilm_directory, reference):
    spec = recognise(minilm_directory, "m", {"weights_path": str(minilm_directory)}).resolve(Runtime("cpu"))
    lanes = Lanes(spec, minilm_directory, lane_tokens=200)
    vectors = lanes.dense(texts(12))
    lanes.close()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, reference(texts(12)), atol=1e-5)


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    assert median_ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == 2.0
