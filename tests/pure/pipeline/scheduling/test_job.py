"""Sub-batches carry the items of several jobs, each with the options of its own request, and rows go back to them."""

import numpy as np

from sie_triton.contract import Ragged
from sie_triton.pipeline.scheduling.job import NEVER, Job, pack, settle


def job(num_items=1, *, options=None, wanted=("dense",), is_query=False):
    lengths = np.ones(num_items, np.int32)
    features = {"ids": Ragged(np.arange(num_items, dtype=np.int32), lengths)}
    return Job(features, [is_query] * num_items, [1] * num_items, frozenset(wanted), options=options)


def test_a_sub_batch_carries_each_items_request_options():
    first = job(2, options={"threshold": 0.5})
    second = job(options={}, wanted=["dense", "sparse"], is_query=True)
    batch = pack([(first, 1), (second, 0), (first, 0)])
    assert batch.options == [{"threshold": 0.5}, {}, {"threshold": 0.5}]
    assert batch.outputs == {"dense", "sparse"}
    assert batch.is_query.tolist() == [False, True, False]
    assert batch.num_items == 3


def test_a_sub_batch_has_the_latest_deadline_of_its_items():
    early, late, for_ever = job(2), job(), job()
    early.deadline_ns, late.deadline_ns = 5, 9
    assert pack([(early, 0), (late, 0), (early, 1)]).deadline_ns == 9
    assert pack([(early, 0), (for_ever, 0)]).deadline_ns == NEVER


def test_a_family_without_parameters_gets_no_options():
    assert pack([(job(2), 0), (job(), 0)]).options == []


RAGGED = {"rows": "rows_lengths"}


def test_each_request_gets_its_own_rows_in_its_own_order():
    first, second = job(2), job(1)
    result = {
        "dense": np.array([[1], [2], [3]], np.float32),
        "rows": np.arange(6),
        "rows_lengths": np.array([3, 0, 3], np.int32),
    }
    assert settle([(first, 1), (second, 0), (first, 0)], result, (5, 9), RAGGED) == [first, second]
    assert [row["dense"].tolist() for row in first.rows] == [[3], [1]]
    assert [row["rows"].tolist() for row in first.rows] == [[3, 4, 5], [0, 1, 2]]
    assert [int(row["rows_lengths"]) for row in first.rows] == [3, 3]
    assert [row["rows"].tolist() for row in second.rows] == [[]]
    assert first.ran == second.ran == [(5, 9)]


def test_a_request_is_done_by_its_last_item():
    made = job(2)
    assert settle([(made, 0)], {"dense": np.ones((1, 1))}, (1, 2), RAGGED) == []
    assert settle([(made, 1)], {"dense": np.ones((1, 1))}, (3, 4), RAGGED) == [made]
    assert made.ran == [(1, 2), (3, 4)]
