"""Only items of one group share a forward pass, each with the options of its own request."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.contract import Ragged
from sie_triton.contract.spec import Runtime
from sie_triton.pipeline.scheduling.job import NEVER, Job, pack, settle
from sie_triton.pipeline.scheduling.scheduler import of_one_group
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.records.status import StatusWriter
from tests.pure.pipeline.scheduling.test_scheduler import Slots
from tests.pure.pipeline.scheduling.test_scheduler_order import Order
from tests.support.stages import EchoWorker, run, spec, tokens


@pytest.fixture
def one_lane(monkeypatch) -> Order:
    """Scheduler of one lane with a budget of 10."""
    return Order(monkeypatch)


def submit(order: Order, *requests: tuple[str, list[int]]) -> None:
    for group, costs in requests:
        slots = Slots(*costs)
        slots.group = group
        order.scheduler.submit(list(slots))


def test_groups_take_turns_by_the_arrival_of_their_first(one_lane):
    submit(one_lane, ("a", [1]), ("b", [2]), ("a", [3]), ("c", [4]), ("b", [5]))
    assert one_lane.run() == [[1, 3], [2, 5], [4]]


def test_items_without_room_in_a_pass_keep_their_position(one_lane):
    submit(one_lane, ("a", [7]), ("b", [5]), ("a", [6]), ("b", [4]), ("a", [3]))
    assert one_lane.run() == [[7], [4, 5], [3, 6]]


def test_no_group_is_passed_over_for_one_that_goes_on(one_lane):
    """Ten sub-batches of one group are queued; the other group runs after the first of them."""
    submit(one_lane, ("a", [10]), ("b", [9]), *[("a", [10])] * 9)
    assert one_lane.run()[:2] == [[10], [9]]


def test_requests_of_several_items_are_kept_apart_too(one_lane):
    submit(one_lane, ("a", [1, 2]), ("b", [3, 3]), ("a", [4, 2]))
    assert one_lane.run() == [[1, 2, 2, 4], [3, 3]]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30))
def test_of_one_group_returns_the_whole_group_in_order(groups):
    slots = []
    for group in groups:
        made = Slots(1)
        made.group = group
        slots += list(made)
    assert of_one_group(slots) == [slot for slot in slots if slot[0].group == groups[0]]


@pytest.fixture(params=[2, 1])
def grouped(tmp_path, request):
    """Warm stage of two lanes or one; the first token is the group, and `seen` has the worker's batches."""
    runtime = Runtime(cpu_threads=request.param)
    stage = Inference(spec(runtime=runtime), "cpu", StatusWriter(tmp_path, "m", "inference", 0))
    stage.worker = EchoWorker()
    stage.load = lambda: stage.worker
    stage.warm_up()
    take, forward = stage._codec.read, stage.worker.forward

    def taken(request, limits):
        work = take(request, limits)
        work.group = int(work.features["input_ids"].values[0])
        return work

    stage.seen = []
    stage._codec.read = taken
    stage.worker.forward = lambda batch, threads: stage.seen.append(batch) or forward(batch, threads)
    yield stage
    stage.close()


@pytest.mark.parametrize("num_items", [1, 3, 40])
def test_items_of_two_groups_never_share_a_forward_pass(grouped, num_items):
    """Groups stay apart in `execute` itself (small requests), on a lane and as bulk work."""
    requests = [tokens(*[[group] * 5] * num_items) for group in (7, 8, 7, 9, 8)]
    answers = run(grouped, requests)
    for group, answer in zip((7, 8, 7, 9, 8), answers, strict=True):
        assert answer["dense"].tolist() == [[group, 5]] * num_items
    assert all(set(batch.features["input_ids"].values.tolist()) == {batch.group} for batch in grouped.seen)


# --- options of the items of a sub-batch


def job(num_items=1, *, options=None, wanted=("dense",), group=None, is_query=False):
    lengths = np.ones(num_items, np.int32)
    features = {"ids": Ragged(np.arange(num_items, dtype=np.int32), lengths)}
    return Job(features, [is_query] * num_items, [1] * num_items, frozenset(wanted), group=group, options=options)


def test_a_sub_batch_carries_each_items_request_options():
    first = job(2, options={"threshold": 0.5}, group="g")
    second = job(options={}, wanted=["dense", "sparse"], group="g", is_query=True)
    batch = pack([(first, 1), (second, 0), (first, 0)])
    assert batch.options == [{"threshold": 0.5}, {}, {"threshold": 0.5}]
    assert batch.outputs == {"dense", "sparse"}
    assert batch.is_query.tolist() == [False, True, False]
    assert (batch.group, batch.num_items) == ("g", 3)


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
