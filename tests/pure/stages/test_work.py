"""Inference's inputs and outputs, for a family with features and parameters of its own."""

import numpy as np
import pytest

from sie_triton.contract import VERBS
from sie_triton.errors import InputError
from sie_triton.families import model_of
from sie_triton.records.traffic import TrafficWriter
from sie_triton.scheduling.job import NEVER, pack
from sie_triton.spec import Runtime
from sie_triton.stages.context import Context, Contexts
from sie_triton.stages.postprocess import Postprocess
from sie_triton.stages.seal import SEAL_BYTES, Seal
from sie_triton.stages.timing import BusyLog
from sie_triton.stages.work import Desk
from sie_triton.worker.messages import Loaded
from tests.support.family_double import NAME
from tests.support.stages import FakeRequest, context, run, spec, tokens

ENCODE, SCORE = VERBS["encode"], VERBS["score"]
OWN = spec(
    family=NAME,
    dims={"dense": 2, "tags": 4},
    tasks=("encode", "score"),
    score_modes=("dense",),
    batch_cost="attention",
    max_sequence_length=1000,
    runtime=Runtime(),
)


@pytest.fixture
def seal(tmp_path):
    return Seal(tmp_path)


@pytest.fixture
def desk(seal):
    return Desk(OWN, seal)


def sent(seal, context, lengths=(2, 600), **changes):
    """Make a request as preprocess sends it, sealed."""
    total = sum(lengths)
    tensors = {
        "letters": np.arange(total, dtype=np.int32),
        "pairs": np.zeros((total, 2), np.float32),
        "weight": np.zeros((len(lengths), 3), np.float32),
        "num_letters": np.array(lengths, np.int32),
    }
    sealed = Contexts(model_of(OWN), seal).write(context, tensors.values())
    return FakeRequest(**{name: each[None] for name, each in {**tensors, "context": sealed, **changes}.items()})


def loaded(limits=None):
    """Return a worker's report of a model that reads items of at most 10,000 rows."""
    return Loaded(limits or {}, 10_000, 1, 0)


def test_work_takes_its_options_from_the_context(seal, desk):
    options = {"threshold": 0.5, "labels": "near", "normalize": False, "output_types": "tags"}
    work = desk.take(sent(seal, Context(ENCODE, options, num_items=2, deadline_ns=77, ticket=5)), loaded())
    assert work.deadline_ns == 77
    assert work.options == {"threshold": 0.5, "labels": "near"}
    assert work.wanted == {"tags"}
    assert work.costs == [1, -(-(600**2) // 512)]
    assert work.is_query == [False, False]
    assert work.context.ticket == 5
    assert work.group is None
    assert work.features["letters"].lengths is work.features["pairs"].lengths


def test_the_query_of_a_score_is_its_last_element(seal, desk):
    work = desk.take(sent(seal, Context(SCORE, {}, num_items=1)), loaded())
    assert work.is_query == [False, True]
    assert (work.wanted, work.options, work.deadline_ns) == ({"dense"}, {}, NEVER)


def test_is_query_applies_to_every_item_of_an_encode_request(seal, desk):
    assert desk.take(sent(seal, Context(ENCODE, {"is_query": True}, num_items=2)), loaded()).is_query == [True, True]


def test_a_familys_parameters_reach_its_batch_item_by_item(seal, desk):
    first = desk.take(sent(seal, Context(ENCODE, {"threshold": 0.5}, num_items=2)), loaded())
    second = desk.take(sent(seal, Context(ENCODE, {"labels": "far"}, num_items=1), [3]), loaded())
    batch = pack([(first, 0), (second, 0), (first, 1)])
    assert batch.options == [{"threshold": 0.5}, {"labels": "far"}, {"threshold": 0.5}]
    assert batch.features["letters"].lengths.tolist() == [2, 3, 600]


def test_the_deadline_is_known_before_the_request_is_read(seal, desk):
    request = sent(seal, Context(ENCODE, {}, num_items=2, deadline_ns=77), letters=np.zeros(0, np.int32))
    assert desk.deadline_ns(request) == 77
    assert desk.deadline_ns(FakeRequest()) is None


@pytest.mark.parametrize(
    ("changes", "limits", "complaint"),
    [
        ({"letters": np.zeros(601, np.int32)}, {}, "context: this step accepts only the output of the previous step"),
        ({"pairs": np.zeros((301, 4), np.float32)}, {}, "num_letters: sum to 602, but pairs holds 301"),
        ({}, {"letters": 600}, "letters: must be from 0 to 600"),
        ({"weight": np.zeros((1, 6), np.float32)}, {}, "weight: has 1 rows; there are 2 items"),
        ({"weight": np.zeros((3, 2), np.float32)}, {}, "weight: has 3 rows; there are 2 items"),
    ],
)
def test_sealed_requests_are_checked_feature_by_feature(seal, desk, changes, limits, complaint):
    """A seal covers sizes, not shapes."""
    with pytest.raises(InputError, match=complaint):
        desk.take(sent(seal, Context(ENCODE, {}, num_items=2), **changes), loaded(limits))


def computed(seal, desk, context):
    """Return the response to a request of two items, as if a pass had run from 10 to 15."""
    work = desk.take(sent(seal, context), loaded())
    for item in range(2):
        rows = np.full((item + 1, 4), item, np.float32)
        work.put(item, {"dense": np.full(2, item, np.float32), "tags": rows, "tags_lengths": np.int32(item + 1)})
    work.ran.append((10, 15))
    desk.collect(work)
    loads = BusyLog()
    loads.add(5, 7)
    return desk.hand_on(work, BusyLog(), loads)


@pytest.mark.parametrize(("verb", "num_items"), [(ENCODE, 2), (SCORE, 1)])
def test_postprocess_accepts_only_outputs_of_inference(seal, desk, verb, num_items):
    """Both verbs share the step; only tokens of items are counted."""
    handed = computed(seal, desk, Context(verb, {}, num_items=num_items, preprocessed_ns=4))
    lengths = np.array([[2, 600]], np.int32)
    stage = Postprocess(OWN, seal, TrafficWriter.private())
    request = {name: each[None] for name, each in handed.items()}
    good, fewer = run(stage, [FakeRequest(**request, lengths=lengths), FakeRequest(**request, lengths=lengths[:, :1])])
    assert good["token_count"].tolist() == [2, 600][:num_items]
    with pytest.raises(InputError, match="context: this step accepts only the output of the previous step"):
        raise fewer


def test_an_output_of_a_familys_own_is_handed_on_with_its_lengths(seal, desk):
    handed = computed(seal, desk, Context(ENCODE, {"output_types": "tags"}, num_items=2))
    assert handed["tags"].tolist() == [[0] * 4, [1] * 4, [1] * 4]
    assert handed["tags_lengths"].tolist() == [1, 2]
    assert len(handed["dense"]) == 0
    assert desk.ragged == {"tags": "tags_lengths"}


def test_the_context_from_inference_has_its_times(seal, desk):
    handed = computed(seal, desk, Context(ENCODE, {}, num_items=2, preprocessed_ns=4))
    tensors = [*(each for name, each in handed.items() if name != "context"), np.zeros(2, np.int32)]
    found = Contexts(model_of(OWN), seal).read(FakeRequest(context=handed["context"][None]), tensors)
    assert (found.inference_ns, found.queue_ns, found.batch_wait_ns) == (5, 0, 6)


SENT = ("input_ids", "prompt_tokens", "lengths")
DEEP = np.frombuffer(bytes(SEAL_BYTES) + b"[" * 100_000, np.uint8)[None]


@pytest.mark.parametrize("inference", [{}, {"runtime": Runtime()}], indirect=True, ids=["open", "closed"])
def test_only_the_request_with_a_deeply_nested_context_is_refused(inference):
    """Its depth is checked before its seal."""
    good = tokens([7])
    sealed = Contexts(inference._desk._model, inference._desk._contexts._seal)
    made = sealed.write(Context(ENCODE, {}, num_items=1), [good.tensor(name)[0] for name in SENT])
    good._tensors["context"] = made[None]
    for _ in ("cold", "warm"):
        bad = tokens([8], context=DEEP)
        good.answers.clear()
        good.answered.clear()
        refused, answer = run(inference, [bad, good])
        assert isinstance(refused, InputError)
        assert answer["dense"].tolist() == [[7, 1]]
        inference.warm_up()


def test_an_oversized_ticket_fails_only_its_request(inference):
    inference.warm_up()
    bad, good = run(inference, [tokens([8], context=context(ticket=10**30)), tokens([7])])
    assert isinstance(bad, InputError)
    assert good["dense"].tolist() == [[7, 1]]


@pytest.mark.parametrize("num_items", [-1, 2, 10**12])
def test_a_wrong_number_of_items_fails_only_its_request(inference, num_items):
    """Inference would make a list of so many items."""
    inference.warm_up()
    bad, good = run(inference, [tokens([8], context=context("encode", num_items)), tokens([7])])
    with pytest.raises(InputError, match=f"context: counts {num_items} items, but there are 1 lengths"):
        raise bad
    assert good["dense"].tolist() == [[7, 1]]
