"""Faults that no request may cause for others: panics, unexpected errors, responses that cannot be sent."""

import shutil
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from sie_triton.errors import Cancelled, InputError, ModelError
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.scheduler import Scheduler
from sie_triton.pipeline.stages import shared_memory
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.open_requests import NEVER, OpenRequest
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.pipeline.stages.shared_memory import AnswerRoom
from sie_triton.records.status import StatusWriter
from sie_triton.records.traffic import TrafficWriter
from tests.support.controller import wait_for
from tests.support.stages import Counts, FakeRequest, asked, computed, open_requests, run, spec, tokens

# Its pattern backtracks until the library gives up, and panics.
CURSED = "a" * 40
GOOD = "hello vine"


def texts(*items):
    return np.array([[item.encode() for item in items]], object)


@pytest.fixture
def preprocess(tmp_path, minilm_directory):
    model = tmp_path / "model"
    shutil.copytree(minilm_directory, model, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("((a|a)+)+[!]"), "isolated"), pre_tokenizers.BertPreTokenizer()]
    )
    tokenizer.save(str(model / "tokenizer.json"))
    stage = Preprocess(spec(weights=str(model)), StatusWriter(tmp_path, "m", "preprocess", 0))
    stage.warm_up()
    yield stage
    stage.close()


def test_a_text_that_panics_the_tokenizer_fails_only_its_request(preprocess):
    batch = [asked("encode", text=[GOOD]), asked("encode", text=[GOOD, CURSED]), asked("encode", text=[GOOD])]
    first, bad, last = run(preprocess, batch)
    with pytest.raises(InputError, match=r"text\[1\]: the model's tokenizer fails on it"):
        raise bad
    assert first["input_ids"].tolist() == last["input_ids"].tolist()
    assert len(first["input_ids"]) == 4


def test_a_tokenizer_panic_in_bulk_is_answered_and_tokenizing_continues(preprocess):
    for item, is_bad in ((CURSED, True), (GOOD, False)):
        (answer,) = run(preprocess, [asked("encode", text=[*[GOOD] * 200, item])])
        assert isinstance(answer, InputError) == is_bad
    assert "text[200]" not in str(answer)
    assert preprocess.status.record["num_open"] == 0


def test_bulk_tokenizing_ends_when_its_client_is_gone(preprocess):
    request = asked("encode", text=[*["vine " * 2000] * 200])
    request.cancelled = True
    (answer,) = run(preprocess, [request])
    assert isinstance(answer, Cancelled)


class Breaking:
    """Callable that raises a BaseException which is no Exception, as a panic is."""

    class Panic(BaseException):
        pass

    def __call__(self, *_, **__):
        raise self.Panic("secret")


def test_whatever_is_raised_execute_answers_every_request(inference, monkeypatch):
    inference.warm_up()
    bulk, single = tokens(*[[1] * 60] * 4), tokens([5])
    monkeypatch.setattr(inference._scheduler, "submit", Breaking())
    direct = inference.execute([bulk, single, tokens(), FakeRequest()])
    assert direct[0] is DEFERRED
    assert single.answer(direct[1])["dense"].tolist() == [[5, 1]], "it was answered before"
    answer = bulk.answer(direct[0])  # a lane may have been faster
    assert isinstance(answer, ModelError) or len(answer["dense"]) == 4
    assert "secret" not in str(answer)
    assert all(isinstance(answer, InputError | ModelError) for answer in direct[2:])
    assert inference.status.record["num_faults"] >= 1
    assert inference.status.record["num_open"] == 0


@pytest.mark.parametrize("how_many", [1, 8])
def test_an_error_beside_the_forward_pass_is_answered_and_the_lane_goes_on(inference, monkeypatch, how_many):
    inference.warm_up()
    monkeypatch.setattr(inference._reports, "report", Breaking())
    for answer in run(inference, [tokens([1] * 60) for _ in range(how_many)]):
        assert isinstance(answer, ModelError)
    monkeypatch.undo()
    for answer in run(inference, [tokens([1] * 60) for _ in range(how_many)]):
        assert answer["dense"].tolist() == [[1, 60]]
    assert inference.status.record["num_open"] == 0
    assert inference.status.record["busy_since_ns"] == 0


def test_a_lane_that_fails_goes_on():
    faults, ran, fail = [], threading.Event(), [True]

    class Job:
        costs, deadline_ns, group = [1], NEVER, None

        def is_late(self, now_ns):
            return False

    def execute(sub_batch, threads):
        if fail.pop() if fail else False:
            raise Breaking.Panic
        ran.set()

    scheduler = Scheduler("cuda:0", execute, 10, fault=lambda: faults.append(1))
    for _ in range(2):
        scheduler.submit([(Job(), 0)])
        wait_for(lambda: faults)
    assert ran.wait(60)
    assert faults == [1]
    scheduler.close()


class Refusing(FakeRequest):
    def reply(self, answer):
        raise RuntimeError("Failed to increase the shared memory pool size")


def test_an_answer_rejected_by_triton_does_not_stop_later_deadlines():
    counts = Counts()
    requests, now, good = open_requests(counts), time.monotonic_ns(), FakeRequest()
    OpenRequest(Refusing(), requests).defer(now + 10_000_000)
    OpenRequest(good, requests).defer(now + 60_000_000)
    wait_for(lambda: counts.total("num_open") == -2)
    assert good.answered.is_set()
    assert (counts.total("num_expired"), counts.total("num_faults")) == (2, 1)
    requests.close()


def test_answers_share_one_wait_for_free_shared_memory(tmp_path, monkeypatch):
    room = AnswerRoom(tmp_path)
    free = [0, 0, 10**9]
    monkeypatch.setattr(room, "_has", lambda num_bytes: num_bytes <= (free.pop(0) if free else 0))
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(slept), sleep=slept.append)
    monkeypatch.setattr(shared_memory, "time", clock)
    assert room.wait_for(10**6)  # at the third look
    assert room.wait_for(100)  # small ones never wait
    slept.clear()
    assert [room.wait_for(10**6) for _ in range(5)] == [False] * 5
    assert sum(slept) == pytest.approx(StageLimits.no_room_s, abs=2 * StageLimits.room_poll_s)


FOUND = b"[[[0, 3, 0, 0.5]], [], [], null, [], []]"
LABELLED = {
    "found": np.frombuffer(FOUND, np.uint8),
    "found_lengths": np.array([len(FOUND)], np.int32),
    "num_pieces": np.array([2], np.int32),
    "lengths": np.array([3, 4], np.int32),
}
TEXT = {"extract_text": np.array([[b"Ada"]], object), "extract_labels": np.array([[b"person"]], object)}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"extract_labels": np.zeros((1, 0), object)}, "found: must be as the previous step writes it"),
        ({"extract_text": np.array([[b"Ada", b"Bob"]], object)}, "text: has 2 elements; there are 1 items"),
    ],
)
def test_postprocess_takes_no_texts_that_the_model_has_not_read(tmp_path, changed, complaint):
    """The client's texts and labels reach postprocess directly, so that nothing seals them."""
    stage = Postprocess(spec(family="gliner", tasks=("extract",), dims={}), Seal(tmp_path), TrafficWriter.private())
    good, bad = run(
        stage, [computed(LABELLED, inputs, verb="extract", num_items=1) for inputs in (TEXT, TEXT | changed)]
    )
    assert good["token_count"].tolist() == [7]
    with pytest.raises(InputError, match=complaint):
        raise bad


def test_absurd_times_fail_no_request(tmp_path):
    """The sum of a histogram would not fit into its record any more."""
    stage = Postprocess(spec(), Seal(tmp_path), TrafficWriter.private())
    absurd = {"queue_ns": NEVER, "batch_wait_ns": NEVER, "loading_ns": NEVER, "arrived_ns": -NEVER}
    arrays = {"lengths": np.array([3], np.int32), "dense": np.ones((1, 2), np.float32)}
    for answer in run(stage, [computed(arrays, **absurd) for _ in range(20)]):
        assert answer["token_count"].tolist() == [3]
