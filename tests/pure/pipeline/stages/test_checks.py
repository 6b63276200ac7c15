"""Checks of a step's inputs: shapes, lengths, widths and ranges, and the name of the faulty input."""

import numpy as np
import pytest

from sie_triton.contract import Ragged
from sie_triton.contract.tensors import DENSE, MULTIVECTOR, Tensor
from sie_triton.errors import InputError
from sie_triton.models.families import model_of
from sie_triton.pipeline.stages.checks import check_computed, check_features, widths_of
from sie_triton.pipeline.stages.message import Seal, array_of
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.records.traffic import TrafficWriter
from tests.support.family_double import NAME
from tests.support.stages import FakeRequest, computed, run, spec

IDS = Tensor("ids", "INT32", (-1,), "", "num_ids", 0)
TYPES = Tensor("types", "INT32", (-1,), "", "num_ids", 0, 1)
PATCHES = Tensor("patches", "FP32", (-1, 2), "", "num_patches")
WEIGHT = Tensor("weight", "FP32", (-1, 3))
DECLARED = (IDS, TYPES, PATCHES, WEIGHT)


def ints(*values):
    return np.array(values, np.int32)


def features(**changes):
    """Legal features of two items: two tokens and one, one patch and four."""
    lengths = ints(2, 1)
    legal = {
        "ids": Ragged(ints(5, 0, 9), lengths),
        "types": Ragged(ints(0, 1, 1), lengths),
        "patches": Ragged(np.zeros((5, 2), np.float32), ints(1, 4)),
        "weight": Ragged(np.zeros((2, 3), np.float32)),
    }
    return {**legal, **changes}


def check(limits=None, **changes):
    check_features(features(**changes), DECLARED, 4, limits or {})


def test_secondary_features_may_have_a_limit_too():
    check({"num_patches": 4})
    with pytest.raises(InputError, match=r"^num_patches: must be from 0 to 3"):
        check({"num_patches": 3})


def test_item_lengths_given_by_a_feature_must_be_within_the_limit():
    read = Tensor("read", "INT32", (-1,), "", "", 1)
    declared = (read, IDS)
    legal = {"read": Ragged(ints(2, 7)), "ids": Ragged(ints(5, 6), ints(2, 0))}
    check_features(legal, declared, 2, {"read": 7})
    for lengths, said in ((ints(2, 0), "must be from 1"), (ints(2, 8), "must be from 1 to 7")):
        with pytest.raises(InputError, match=f"^read: {said}"):
            check_features({**legal, "read": Ragged(lengths)}, declared, 2, {"read": 7})
    with pytest.raises(InputError, match=r"^num_ids: has the lengths of 2 items; there are 3 items"):
        check_features({**legal, "read": Ragged(ints(2, 7, 1))}, declared, 2, {"read": 7})


def test_legal_features_pass_up_to_the_limits():
    check()
    check({"ids": 9})
    check({"types": 1})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ids": Ragged(ints(5, -1, 9), ints(2, 1))}, "ids: must be from 0$"),
        ({"ids": Ragged(ints(), ints())}, "num_ids: is empty"),
        ({"ids": Ragged(ints(1, 1), ints(2, 0))}, "num_ids: must be from 1 to 4"),
        ({"ids": Ragged(ints(*[1] * 6), ints(5, 1))}, "num_ids: must be from 1 to 4"),
        ({"ids": Ragged(ints(1, 1), ints(2, 1))}, "num_ids: sum to 3, but ids holds 2"),
        ({"ids": Ragged(ints(1, 1, 1, 1), ints(2, 1))}, "num_ids: sum to 3, but ids holds 4"),
        ({"types": Ragged(ints(0, 2, 1), ints(2, 1))}, "types: must be from 0 to 1$"),
        ({"types": Ragged(ints(0, 1), ints(2, 1))}, "num_ids: sum to 3, but types holds 2"),
        (
            {"patches": Ragged(np.zeros((1, 2), np.float32), ints(1))},
            "num_patches: has the lengths of 1 items; there are 2 items",
        ),
        (
            {"patches": Ragged(np.zeros((3, 2), np.float32), ints(1, 1, 1))},
            "num_patches: has the lengths of 3 items; there are 2 items",
        ),
        ({"patches": Ragged(np.zeros((5, 3), np.float32), ints(1, 4))}, r"patches: rows have shape \[3\]; .*\[2\]"),
        ({"weight": Ragged(np.zeros((2, 2), np.float32))}, r"weight: rows have shape \[2\]; .*\[3\]"),
        ({"weight": Ragged(np.zeros((3, 3), np.float32))}, "weight: has 3 rows; there are 2 items"),
    ],
)
def test_the_first_feature_that_is_wrong_is_named(changes, complaint):
    with pytest.raises(InputError, match=complaint):
        check(**changes)


@pytest.mark.parametrize(
    ("limits", "complaint"), [({"ids": 8}, "ids: must be from 0 to 8"), ({"types": 0}, "types: must be from 0 to 0")]
)
def test_a_models_limit_overrides_the_features_default_limit(limits, complaint):
    with pytest.raises(InputError, match=complaint):
        check(limits)


def test_lengths_whose_sum_overflows_int32_are_refused():
    huge = ints(2**31 - 1, 2**31 - 1, 6)
    with pytest.raises(InputError, match="num_ids: sum to 4294967300, but ids holds 4"):
        check_features({"ids": Ragged(ints(1, 1, 1, 1), huge)}, (IDS,), 2**31 - 1, {})


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (None, "patches: missing"),
        (np.zeros((1, 2), np.float32), r"patches: has shape \[1, 2\]; send \[1, k, 2\]"),
        (np.zeros((2, 5, 2), np.float32), r"patches: has shape \[2, 5, 2\]"),
    ],
)
def test_a_missing_or_wrongly_shaped_array_is_refused(sent, complaint):
    with pytest.raises(InputError, match=complaint):
        array_of(FakeRequest(patches=sent), PATCHES)


def test_an_array_is_copied_unless_the_request_alone_uses_it():
    sent = np.zeros((1, 5, 2), np.float32)
    request = FakeRequest(patches=sent)
    assert not np.shares_memory(array_of(request, PATCHES), sent)
    assert np.shares_memory(array_of(request, PATCHES, copy=False), sent)
    assert array_of(FakeRequest(patches=sent.astype(np.float64)), PATCHES).dtype == np.float32


# --- of a forward pass

WIDTHS = {"dense": 2, "multivector": 3}


def check_result(dense=(2, 2), rows=(3, 3), lengths=(1, 2)):
    tensors = {"dense": np.zeros(dense), "multivector": np.zeros(rows), "multivector_lengths": ints(*lengths)}
    check_computed(tensors, (DENSE, MULTIVECTOR), 2, WIDTHS)


def test_results_with_matching_rows_are_accepted():
    check_result()
    check_result(rows=(0, 3), lengths=(0, 0))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"dense": (3, 2)}, "dense: has 3 rows; there are 2 items"),
        ({"dense": (2, 1)}, "dense: rows have 1 entries; this model's have 2"),
        ({"rows": (3, 4)}, "multivector: rows have 4 entries; this model's have 3"),
        ({"rows": (2, 3)}, "multivector_lengths: must be 0 or more and sum to the rows of multivector, 2"),
        ({"lengths": (4, -1)}, "multivector_lengths: must be 0 or more"),
        ({"lengths": (2**31 - 1, 2**31 - 1, 5)}, "multivector_lengths: must be 0 or more"),
    ],
)
def test_impossible_results_of_a_forward_pass_are_refused(changes, complaint):
    with pytest.raises(InputError, match=complaint):
        check_result(**changes)


def test_postprocess_takes_no_vectors_of_another_size_from_another_packages_adapter(tmp_path):
    stage = Postprocess(spec(family=NAME), Seal(tmp_path), TrafficWriter.private())
    good, bad = run(stage, [computed({"lengths": ints(3), "dense": np.ones((1, n), np.float32)}) for n in (2, 3)])
    assert good["dense"].shape == (1, 2)
    with pytest.raises(InputError, match="dense: rows have 3 entries; this model's have 2"):
        raise bad


def test_a_row_is_as_wide_as_the_model_file_says():
    assert widths_of(model_of(spec(family="bge_m3", dims={"dense": 2, "sparse": 9, "multivector": 3}))) == {
        "dense": 2,
        "sparse_indices": 9,
        "multivector": 3,
    }
