"""Ragged features, cut and put together, sent and read back: each item keeps what is its own."""

import numpy as np
import pytest

from sie_triton.contract import Ragged
from sie_triton.contract.tensors import MULTIVECTOR, SPARSE_INDICES, Tensor, lengths_of, with_lengths
from sie_triton.models.inputs.features import from_tensors, join, split, to_tensors
from sie_triton.pipeline.scheduling.job import Job, pack

# Two features of one length, one of another, one of a single row an item.
IDS, TYPES = (Tensor(name, "INT32", (-1,), "", "lengths") for name in ("ids", "types"))
PATCHES = Tensor("patches", "FP32", (-1, 2), "", "num_patches")
MARK = Tensor("mark", "INT32", (-1,))
DECLARED = (IDS, MARK, TYPES, PATCHES)


def features(lengths, num_patches, start=0):
    """Features with consecutive numbers, so that no two rows are the same."""
    of_ids, of_patches = np.array(lengths, np.int32), np.array(num_patches, np.int32)
    ids = np.arange(of_ids.sum(), dtype=np.int32) + start
    patches = np.arange(of_patches.sum() * 2, dtype=np.float32).reshape(-1, 2) + start
    marks = np.arange(len(lengths), dtype=np.int32) + start
    found = {"ids": Ragged(ids, of_ids), "mark": Ragged(marks), "types": Ragged(-ids, of_ids)}
    return {**found, "patches": Ragged(patches, of_patches)}


def shown(features):
    return {
        name: (values.tolist(), None if lengths is None else lengths.tolist())
        for name, (values, lengths) in features.items()
    }


def test_each_part_gets_the_rows_of_its_items():
    first, second = split(features([2, 1, 3], [0, 2, 1]), [1, 2])
    assert shown(first) == {"ids": ([0, 1], [2]), "mark": ([0], None), "types": ([0, -1], [2]), "patches": ([], [0])}
    assert shown(second) == {
        "ids": ([2, 3, 4, 5], [1, 3]),
        "mark": ([1, 2], None),
        "types": ([-2, -3, -4, -5], [1, 3]),
        "patches": ([[0, 1], [2, 3], [4, 5]], [2, 1]),
    }


@pytest.mark.parametrize("counts", [[3], [1, 1, 1], [2, 1], [0, 3], [1, 0, 2]])
@pytest.mark.parametrize("lengths", [[2, 1, 3], [0, 0, 1], [100, 200, 40_000]])
def test_parts_put_together_are_the_whole(counts, lengths):
    whole = features(lengths, [0, 2, 1])
    parts = split(whole, counts)
    assert [len(part["mark"].values) for part in parts] == counts
    assert shown(join(parts)) == shown(whole)


def test_splitting_into_one_part_and_joining_it_copies_nothing():
    whole = features([2], [1])
    assert split(whole, [1])[0] is whole
    assert join([whole]) is whole


def test_each_feature_and_each_lengths_tensor_is_sent_once():
    given = features([2, 1], [0, 1])
    sent = to_tensors(given, DECLARED)
    assert list(sent) == ["ids", "mark", "types", "patches", "lengths", "num_patches"]
    assert list(sent) == [tensor.name for tensor in with_lengths(DECLARED)]
    assert [sent[name].tolist() for name in ("lengths", "num_patches")] == [[2, 1], [0, 1]]
    assert shown(from_tensors(sent, DECLARED)) == shown(given)


def test_lengths_that_are_a_feature_too_are_sent_as_that():
    lengths = Tensor("lengths", "INT32", (-1,))
    given = {"ids": Ragged(np.arange(3), np.array([2, 1])), "lengths": Ragged(np.array([2, 1]))}
    sent = to_tensors(given, (IDS, lengths))
    assert sent["lengths"] is given["lengths"].values
    assert with_lengths((IDS, lengths)) == (IDS, lengths)


def test_tensors_with_their_lengths_are_named_once_each():
    assert [tensor.name for tensor in with_lengths((IDS, TYPES, PATCHES, IDS))] == [
        "ids",
        "types",
        "patches",
        "lengths",
        "num_patches",
    ]
    assert lengths_of(DECLARED) == {"ids": "lengths", "types": "lengths", "patches": "num_patches"}


def test_unrequested_outputs_are_empty_and_keep_a_fixed_width():
    assert (MULTIVECTOR.empty().shape, MULTIVECTOR.empty().dtype) == ((0, 0), np.float32)
    assert (SPARSE_INDICES.empty().shape, SPARSE_INDICES.empty().dtype) == ((0,), np.int32)
    assert PATCHES.empty().shape == (0, 2)


def job(lengths, num_patches, start):
    sent = to_tensors(features(lengths, num_patches, start), DECLARED)
    return Job(from_tensors(sent, DECLARED), [False] * len(lengths), lengths)


def test_a_sub_batch_has_the_rows_of_its_items_in_its_own_order():
    """Features of different lengths are separate; those of equal lengths share the array, as a worker is sent each
    array once.
    """
    first, second = job([2, 1, 3], [0, 2, 1], 0), job([1, 2], [1, 1], 100)
    batch = pack([(second, 1), (first, 2), (first, 1), (second, 0)])
    assert shown(batch.features) == {
        "ids": ([101, 102, 3, 4, 5, 2, 100], [2, 3, 1, 1]),
        "mark": ([101, 2, 1, 100], None),
        "types": ([-101, -102, -3, -4, -5, -2, -100], [2, 3, 1, 1]),
        "patches": ([[102, 103], [4, 5], [0, 1], [2, 3], [100, 101]], [1, 1, 2, 1]),
    }
    assert batch.features["ids"].lengths is batch.features["types"].lengths
    assert batch.features["ids"].lengths is not batch.features["patches"].lengths


def test_all_items_of_one_job_are_packed_in_the_order_of_the_sub_batch():
    whole = job([2, 1, 3], [0, 2, 1], 0)
    assert pack([(whole, 0), (whole, 1), (whole, 2)]).features["ids"].values is whole.features["ids"].values
    assert shown(pack([(whole, 1), (whole, 0), (whole, 2)]).features)["ids"] == ([2, 0, 1, 3, 4, 5], [1, 2, 3])
    assert shown(pack([(whole, 0), (whole, 1)]).features)["ids"] == ([0, 1, 2], [2, 1])
