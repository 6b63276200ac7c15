"""The stages at their own seam: requests as arrays, no Triton."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.errors import InputError, LoadError, ModelError, OutOfMemory, SIEError
from sie_triton.spec import Runtime
from sie_triton.stages import budget
from sie_triton.stages.background import Background
from sie_triton.stages.budget import CpuBudget
from sie_triton.stages.inference import Inference
from sie_triton.stages.open_requests import NEVER
from sie_triton.stages.preprocess import Preprocess
from sie_triton.stages.request import DEFERRED
from sie_triton.stages.scheduler import Scheduler, cost
from sie_triton.stages.status import FAILED, RESIDENT, StatusWriter, records_of
from sie_triton.stages.timing import BusyLog, covered_ns
from sie_triton.worker.memory import is_out_of_memory
from tests.stages import VOCABULARY, EchoWorker, FakeRequest, run, spec, tokens


@pytest.fixture
def inference(tmp_path):
    stage = Inference(spec(), "cpu", StatusWriter(tmp_path, "m", "inference", 0))
    stage.directory = tmp_path
    stage.worker = EchoWorker()
    stage.load = lambda: stage.worker
    yield stage
    stage.close()


def test_every_request_gets_its_own_rows_cold_and_warm(inference):
    for _ in range(3):
        requests = [tokens([i] * (i + 1), [i] * 5) for i in range(1, 12)]
        for i, answer in enumerate(run(inference, requests), 1):
            assert answer["dense"].tolist() == [[i, i + 1], [i, 5]]


def test_one_request_on_an_idle_device_is_answered_at_once(inference):
    inference.warm_up()
    request = tokens([1, 2, 3])
    (answer,) = inference.execute([request])
    assert answer["dense"].tolist() == [[1, 3]]
    assert not request.deferred


def test_concurrent_first_requests_load_once(inference):
    loads = []
    inference.load = lambda: loads.append(1) or time.sleep(0.2) or inference.worker
    requests = [tokens([i]) for i in range(8)]
    direct = [inference.execute([request]) for request in requests]
    assert all(answers == [DEFERRED] for answers in direct)
    assert [r.answer(DEFERRED)["dense"][0, 0] for r in requests] == list(range(8))
    assert loads == [1]


def test_a_failed_load_is_remembered(inference):
    loads = []

    def fail():
        loads.append(1)
        raise LoadError("weights: gone")

    inference.load = fail
    for _ in range(3):
        (answer,) = run(inference, [tokens([1])])
        assert isinstance(answer, LoadError)
        assert "gone" in str(answer)
    assert loads == [1]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        *((reason, 1) for reason in ("not found", "gated", "corrupt", "unsupported", "dependency", "too large")),
        *((reason, 3) for reason in ("network", "out of memory", "failed")),
    ],
)
def test_only_what_may_pass_by_itself_is_tried_again(inference, monkeypatch, reason, expected):
    monkeypatch.setattr("sie_triton.stages.stage.RETRY_LOAD_AFTER_S", 0.0)
    loads = []

    def fail():
        loads.append(1)
        raise LoadError("weights: gone", reason)

    inference.load = fail
    for _ in range(3):
        run(inference, [tokens([1])])
    assert len(loads) == expected


def test_a_bulk_request_is_cut_and_deferred(inference):
    inference.warm_up()
    (answer,) = run(inference, [tokens(*[[i % 10] * 10 for i in range(50)])])
    assert answer["dense"][:, 0].tolist() == [i % 10 for i in range(50)]
    assert max(inference.worker.batches) <= 100
    assert len(inference.worker.batches) >= 5


def test_options_that_do_not_change_the_forward_pass_share_one(inference):
    inference.warm_up()
    options = [{"output_dtype": dtype} for dtype in ("float32", "int8", "ubinary")]
    options += [{"dimensions": 1}, {"normalize": False}, {"is_query": True}]
    before = len(inference.worker.batches)
    answers = run(inference, [tokens([3, 4], parameters=each) for each in options])
    passes = inference.worker.batches[before:]
    assert sum(passes) == 2 * len(options)
    assert len(passes) <= 2  # one on each lane
    assert all(answer["dense"].tolist() == [[3, 2]] for answer in answers)


def test_small_requests_pass_bulk_work(inference):
    inference.warm_up()
    inference.worker.delay_s = 0.02
    bulk = tokens(*[[1] * 50 for _ in range(60)])
    assert inference.execute([bulk]) == [DEFERRED]
    for _ in range(5):
        run(inference, [tokens([2])])
    assert not bulk.answered.is_set()
    assert len(bulk.answer(DEFERRED)["dense"]) == 60


def test_bulk_work_does_not_starve(inference):
    inference.warm_up()
    inference.worker.delay_s = 0.005
    bulk = tokens(*[[1] * 50 for _ in range(20)])
    inference.execute([bulk])
    deadline = time.monotonic() + 20
    while not bulk.answered.is_set():
        assert time.monotonic() < deadline
        inference.execute([tokens([2]), tokens([3])])


def test_a_failed_sub_batch_spoils_only_its_own_requests(inference):
    inference.warm_up()
    requests = [tokens([13] * 60), *[tokens([i] * 45) for i in (1, 2, 3)]]
    bad, *good = run(inference, requests)
    assert isinstance(bad, ModelError)
    assert "secret" not in str(bad)
    assert "Traceback" not in str(bad)
    assert [answer["dense"][0, 0] for answer in good] == [1, 2, 3]


@pytest.mark.parametrize("shortages", [1, 10**6])
def test_out_of_memory_is_answered_in_smaller_pieces(inference, shortages):
    """32 requests: one sub-batch fails once, or the device has room for a quarter of one from now on."""
    inference.warm_up()
    inference.worker.memory, inference.worker.shortages = 12, shortages
    answers = run(inference, [tokens([i] * 3) for i in range(14, 46)])
    assert [answer["dense"].tolist() for answer in answers] == [[[i, 3]] for i in range(14, 46)]
    assert inference.worker.shortages < shortages


def test_an_item_that_never_fits_is_refused_alone(inference):
    inference.warm_up()
    inference.worker.memory = 30
    big, *small = run(inference, [tokens([1] * 31), *[tokens([i] * 3) for i in range(2, 6)]])
    assert isinstance(big, OutOfMemory)
    assert big.code == "UNAVAILABLE"
    assert "no memory for an item of 31 tokens" in str(big)
    assert [answer["dense"][0, 0] for answer in small] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            True,
        ),
        (RuntimeError("shape mismatch"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"lengths": np.array([[3]], np.int32)}, "lengths: sum to 3, but input_ids holds 2"),
        ({"lengths": np.array([[-1, 3]], np.int32)}, "lengths: must be from 1 to 64"),
        ({"lengths": np.array([[2**31 - 1, 2**31 - 1]], np.int32)}, "lengths: must be from 1 to 64"),
        ({"lengths": np.zeros((1, 0), np.int32)}, "lengths: is empty"),
        ({"lengths": np.array([1, 1], np.int32)}, r"lengths: has shape \[2\]"),
        ({"lengths": np.ones((2, 1), np.int32)}, r"lengths: has shape \[2, 1\]"),
        ({"input_ids": np.array([[1, VOCABULARY]], np.int32)}, "input_ids: must be from 0 to 99"),
        ({"input_ids": np.array([[-1, 1]], np.int32)}, "input_ids: must be from 0 to 99"),
        ({"input_ids": None}, "input_ids: missing"),
        ({"prompt_tokens": np.array([[-1]], np.int32)}, "prompt_tokens: must be one integer"),
        ({"stamps": np.array([[1]], np.int64)}, "stamps: must be 3 integers"),
    ],
)
def test_inference_trusts_nobody(inference, changes, complaint):
    inference.warm_up()
    bad, good = run(inference, [tokens([1, 1], **changes), tokens([5])])
    assert isinstance(bad, InputError)
    with pytest.raises(InputError, match=complaint):
        raise bad
    assert good["dense"].tolist() == [[5, 1]]


def test_the_status_record_tells_what_happened(inference):
    inference.load = Inference.load.__get__(inference)
    run(inference, [tokens([1])])
    (record,) = records_of(inference.directory, "m", "inference")
    assert record["state"] == FAILED
    inference.load = lambda: inference.worker
    inference._failure = None
    inference.warm_up()
    run(inference, [tokens([1, 2], [3])])
    (record,) = records_of(inference.directory, "m", "inference")
    assert (record["num_requests"], record["num_items"], record["total_cost"]) == (2, 2, 3)
    assert record["busy_since_ns"] == 0
    assert 0 < record["last_used_ns"] <= time.monotonic_ns()
    assert RESIDENT == 2


@pytest.mark.parametrize(
    ("text", "parameters", "complaint"),
    [
        (None, {}, "text: missing"),
        (np.zeros((1, 0), object), {}, "text: is empty"),
        (np.array([b"a"], object), {}, r"text: has shape \[1\]"),
        (np.array([[b"ok", b"a\xff"]], object), {}, r"text\[1\]: not valid UTF-8 \(byte 0xff at 1\)"),
        (np.array([[b"ok"]], object), {"nope": 1}, "parameter nope: unknown"),
    ],
)
def test_preprocess_names_the_field(tmp_path, minilm_directory, text, parameters, complaint):
    stage = Preprocess(spec(weights=str(minilm_directory)), StatusWriter(tmp_path, "m", "preprocess", 0))
    bad, good = run(stage, [FakeRequest(parameters, text=text), FakeRequest(text=np.array([[b"hi"]], object))])
    with pytest.raises(SIEError, match=complaint):
        raise bad
    assert good["input_ids"].tolist() == [101, 7632, 102]
    stage.close()


def test_preprocess_is_the_same_for_small_and_bulk_requests(tmp_path, minilm_directory):
    stage = Preprocess(
        spec(weights=str(minilm_directory), max_sequence_length=256), StatusWriter(tmp_path, "m", "preprocess", 0)
    )
    stage.warm_up()
    texts = [f"text number {i} " + "word " * (i % 40) for i in range(400)]
    bulk = FakeRequest(text=np.array([[t.encode() for t in texts]], object))
    singles = [FakeRequest(text=np.array([[t.encode()]], object)) for t in texts]
    (together,) = run(stage, [bulk])
    apart = run(stage, singles)
    assert bulk.deferred
    assert not singles[0].deferred
    assert together["input_ids"].tolist() == np.concatenate([a["input_ids"] for a in apart]).tolist()
    assert together["lengths"].tolist() == [a["lengths"][0] for a in apart]
    assert together["cost"][0] == together["lengths"].sum() == len(together["input_ids"])
    stage.close()


def test_background_runs_jobs_in_turns_and_outlives_a_failing_one():
    log: list[str] = []
    gate = threading.Event()

    def job(name, steps):
        gate.wait(5)
        for i in range(steps):
            log.append(f"{name}{i}")
            yield
        if name == "b":
            raise RuntimeError

    background = Background("test")
    background.submit(job("a", 3))
    background.submit(job("b", 2))
    gate.set()
    background.close()
    assert log == ["a0", "b0", "a1", "b1", "a2"]


class Slots:
    """Jobs as the scheduler sees them: costs, and whether they are of any use."""

    def __init__(self, *costs: int) -> None:
        self.costs = costs
        self.over = False
        self.deadline_ns = NEVER

    def is_over(self, now_ns):
        return self.over

    def __iter__(self):
        return ((self, i) for i in range(len(self.costs)))


@pytest.fixture
def scheduled():
    """A scheduler of one lane that is busy until `release` is set, and what ran on it."""
    ran: list[list[int]] = []
    release, busy = threading.Event(), threading.Event()

    def run(sub_batch, threads):
        ran.append([cost(slot) for slot in sub_batch])
        busy.set()
        release.wait(5)

    scheduler = Scheduler("gpu", run, budget=10)
    scheduler.submit(list(Slots(1)))
    busy.wait(5)
    yield scheduler, release, ran
    release.set()
    scheduler.close()


def test_interactive_work_goes_first_but_not_for_ever(scheduled):
    scheduler, release, ran = scheduled
    scheduler.submit_bulk([list(Slots(99)), list(Slots(98))])
    waiting = threading.Thread(target=lambda: [scheduler.submit(list(Slots(10))) for _ in range(5)])
    waiting.start()
    release.set()
    waiting.join()
    wait_for(lambda: len(ran) == 8)
    assert ran.index([99]) in (2, 3)
    assert ran.count([10]) == 5


def test_what_waits_grows_together_in_order_of_arrival_up_to_the_budget(scheduled):
    scheduler, release, ran = scheduled
    for costs in ((3,), (1,), (4,), (20,), (5,)):
        scheduler.submit(list(Slots(*costs)))
    release.set()
    wait_for(lambda: len(ran) == 4)
    assert ran == [[1], [1, 3, 4], [20], [5]]


def test_a_long_item_does_not_wait_for_a_flood_of_short_ones(scheduled):
    scheduler, release, ran = scheduled
    for _ in range(8):
        scheduler.submit(list(Slots(*[1] * 60)))
    scheduler.submit(list(Slots(9)))
    release.set()
    scheduler.close()
    assert any(9 in costs for costs in ran[:3])


def test_many_items_do_not_starve_beside_single_ones(scheduled):
    scheduler, release, ran = scheduled
    scheduler.submit(list(Slots(*[2] * 30)))
    for _ in range(100):
        scheduler.submit(list(Slots(9)))
    release.set()
    scheduler.close()
    of_several = [i for i, costs in enumerate(ran) if 2 in costs]
    assert max(np.diff([0, *of_several])) <= 4
    assert sum(map(sum, ran)) == 1 + 60 + 900


def test_bulk_requests_take_turns(scheduled):
    scheduler, release, ran = scheduled
    scheduler.submit_bulk([list(Slots(i)) for i in (11, 12, 13)])
    scheduler.submit_bulk([list(Slots(i)) for i in (21, 22)])
    release.set()
    scheduler.close()
    assert ran == [[1], [11], [21], [12], [22], [13]]


def test_what_is_over_is_not_run(scheduled):
    scheduler, release, ran = scheduled
    late, bulk = Slots(9), Slots(55)
    scheduler.submit(list(late))
    scheduler.submit(list(Slots(3)))
    scheduler.submit_bulk([list(bulk), list(bulk)])
    late.over = bulk.over = True
    release.set()
    scheduler.close()
    assert ran == [[1], [3]]


@pytest.mark.parametrize(("left_s", "expected"), [(0.07, [1, 1, 1]), (10, [1] * 8), (0.001, [1, 1])])
def test_a_sub_batch_is_no_longer_than_its_deadlines_allow(left_s, expected):
    """20 ms for a cost of 1, a budget of 8: three fit in 70 ms; a quarter of the budget is always tried."""
    ran: list[list[int]] = []
    scheduler = Scheduler("gpu", lambda sub_batch, _: ran.append([cost(slot) for slot in sub_batch]), budget=8)
    scheduler._pace.add(1, 20_000_000)
    with scheduler.whole():
        jobs = [Slots(1) for _ in range(8)]
        for job in jobs:
            job.deadline_ns = time.monotonic_ns() + int(left_s * 1e9)
            scheduler.submit(list(job))
    scheduler.close()
    assert ran[0] == expected


def test_the_whole_device_is_only_given_when_idle(scheduled):
    scheduler, release, ran = scheduled
    with scheduler.whole() as alone:
        assert not alone
    release.set()
    wait_for(lambda: scheduler._idle == 1)
    with scheduler.whole() as alone:
        assert alone
        with scheduler.whole() as again:
            assert not again
        scheduler.submit(list(Slots(7)))
        time.sleep(0.05)
        assert ran == [[1]]
    wait_for(lambda: ran == [[1], [7]])


def wait_for(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_models_in_use_share_one_thread_budget(monkeypatch):
    now, second = 100 * 10**9, 10**9
    monkeypatch.setattr(budget, "monotonic_ns", lambda: now)
    busy = {"busy_since_ns": now - 60 * second, "last_used_ns": 0}
    just_now = {"busy_since_ns": 0, "last_used_ns": now}
    long_ago = {"busy_since_ns": 0, "last_used_ns": now - 60 * second}
    others: list[dict[str, int]] = [long_ago]
    cpu = CpuBudget(8, lambda: others)
    assert cpu.threads() == 8
    others += [busy, just_now]
    assert cpu.threads() == 8  # counted again after REFRESH_NS
    now += second
    assert cpu.threads() == 8 // 3
    others += [busy] * 20
    now += second
    assert cpu.threads() == 1


INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


@given(INTERVALS, st.integers(0, 60), st.integers(0, 60))
def test_idle_and_covered_time_against_counting(intervals, since, until):
    since, until = min(since, until), max(since, until)
    busy = {t for start, end in intervals for t in range(start, end)}
    log = BusyLog()
    for interval in sorted(intervals, key=lambda i: i[1]):
        log.add(*interval)
    assert log.idle_ns(since, until) == sum(t not in busy for t in range(since, until))
    assert covered_ns(intervals) == len(busy)


def test_a_forgotten_past_counts_as_busy():
    log = BusyLog(max_intervals=2)
    for start in (0, 10, 20):
        log.add(start, start + 5)
    assert log.idle_ns(0, 30) == 5 + 5


def test_runtime_defaults_are_portable():
    assert Runtime().status_dir == ""
