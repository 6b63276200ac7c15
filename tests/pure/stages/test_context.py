"""A request's context on its way through the steps: it holds all facts, and loses none."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sie_triton.contract import VERBS
from sie_triton.errors import InputError
from sie_triton.families import model_of
from sie_triton.scheduling.job import NEVER
from sie_triton.spec import Profile
from sie_triton.stages.context import Context, Contexts, of_profile, timing_ms
from sie_triton.stages.seal import SEAL_BYTES, Seal
from tests.support.family_double import NAME
from tests.support.stages import FakeRequest, context, spec

ENCODE, SCORE = VERBS["encode"], VERBS["score"]
COUNTED = dict(
    zip(
        (
            "num_items",
            "arrived_ns",
            "deadline_ns",
            "preprocessed_ns",
            "ticket",
            "queue_ns",
            "batch_wait_ns",
            "inference_ns",
            "loading_ns",
        ),
        range(1, 10),
        strict=True,
    )
)


@pytest.fixture
def seal(tmp_path):
    return Seal(tmp_path)


def test_every_field_comes_back_as_itself():
    options, pages = {"score_mode": "dense", "k": 0.5, "b": True}, [[], [1, 3]]
    made = Context(SCORE, options, "an id", "a trace", **COUNTED, pages=pages, truncated=[0, 3])
    assert Context.from_json(made.to_json()) == made


@pytest.mark.parametrize("place", range(15))
def test_contexts_with_wrong_field_types_or_counts_are_refused(place):
    fields = json.loads(Context(ENCODE, {}, **COUNTED).to_json())
    assert len(fields) == 15
    for wrong in ([*fields[:place], None, *fields[place + 1 :]], fields[:place], [*fields, 1]):
        with pytest.raises((ValueError, KeyError)):
            Context.from_json(json.dumps(wrong).encode())


def test_a_context_with_a_boolean_field_is_refused():
    fields = json.loads(Context(ENCODE, {}, **COUNTED).to_json())
    with pytest.raises(ValueError, match="not the fields"):
        Context.from_json(json.dumps([*fields[:-3], True, [], []]).encode())


@pytest.mark.parametrize(
    "changed",
    [
        {"ticket": 10**30},
        {"arrived_ns": -(10**30)},
        {"truncated": [-1]},
        {"truncated": ["a"]},
        {"truncated": [2**31]},
        {"pages": [[1, -1]]},
        {"pages": [[2**31]]},
        {"pages": [["a"]]},
        {"pages": [1]},
    ],
)
def test_a_context_with_a_number_out_of_range_is_refused(changed):
    with pytest.raises((ValueError, TypeError)):
        Context.from_json(replace(Context(ENCODE, {}, **COUNTED), **changed).to_json())


# --- what holds for a request

MODEL = model_of(
    spec(
        family=NAME,
        dims={"dense": 8, "tags": 4},
        tasks=("encode", "score"),
        score_modes=("dense", "sparse"),
        profiles=(
            Profile(),
            Profile(
                "other",
                {
                    "output_types": "tags",
                    "output_dtype": "int8",
                    "is_query": True,
                    "dimensions": 4,
                    "normalize": False,
                    "threshold": 0.5,
                    "labels": "near",
                    "score_mode": "sparse",
                },
                instruction="find",
            ),
        ),
    )
)

TRAVELLING = [
    (ENCODE, "output_types", "dense"),
    (ENCODE, "output_dtype", "float32"),
    (ENCODE, "is_query", False),
    (ENCODE, "dimensions", 2),
    (ENCODE, "normalize", True),
    (ENCODE, "threshold", 0.0),
    (ENCODE, "labels", "far,near"),
    (SCORE, "score_mode", "dense"),
    (SCORE, "threshold", 1.0),
]


@pytest.mark.parametrize(("verb", "name", "value"), TRAVELLING)
def test_request_options_override_the_profile_and_the_profile_the_defaults(seal, verb, name, value):
    contexts = Contexts(MODEL, seal)

    def options(**given):
        return contexts.enter(FakeRequest(given), verb, 0)[0].options

    of_profile = MODEL.spec.profile("other").parameters
    assert name not in options()
    assert options(profile="other")[name] == of_profile[name] != value
    assert options(profile="other", **{name: value}) == {**options(profile="other"), name: value}
    assert options(**{name: value}) == {name: value}
    assert options(profile="default", **{name: value}) == {name: value}


def test_a_profile_passes_each_verb_only_its_options(seal):
    contexts = Contexts(MODEL, seal)
    found = {
        verb.name: set(contexts.enter(FakeRequest({"profile": "other"}), verb, 0)[0].options)
        for verb in (ENCODE, SCORE)
    }
    own = {"threshold", "labels"}
    assert found == {
        "encode": {"output_types", "output_dtype", "is_query", "dimensions", "normalize", *own},
        "score": {"score_mode", *own},
    }
    assert of_profile(MODEL.spec.profile("other"), {"normalize", "nope"}) == {"normalize": False}


def test_options_that_only_the_prompt_needs_are_not_sent_on(seal):
    given = {"instruction": "find", "profile": "other", "normalize": True}
    made, read = Contexts(MODEL, seal).enter(FakeRequest(given), ENCODE, 0)
    assert read == given
    assert made.options.keys().isdisjoint({"instruction", "profile"})


def test_options_do_not_leak_into_the_next_request(seal):
    contexts = Contexts(MODEL, seal)
    made, _ = contexts.enter(FakeRequest({"profile": "other"}), ENCODE, 0)
    made.options["dimensions"] = 1
    assert contexts.enter(FakeRequest({"profile": "other"}), ENCODE, 0)[0].options["dimensions"] == 4


def test_the_id_trace_and_timeout_of_a_request_are_kept(seal):
    headers = {"X-Request-Id": "of the header", "traceparent": f"00-{7:032x}-{8:016x}-00"}
    request = FakeRequest(headers, timeout_us=7)
    made, given = Contexts(MODEL, seal).enter(request, ENCODE, 1000)
    assert (made.verb, made.id, made.trace) == (ENCODE, "of the header", f"{7:032x}")
    assert (made.arrived_ns, made.deadline_ns) == (1000, 1000 + 7000)
    assert not given  # neither header is a parameter
    request.id = "of the body"
    assert Contexts(MODEL, seal).enter(request, ENCODE, 1000)[0].id == "of the body"
    assert Contexts(MODEL, seal).enter(FakeRequest({}), ENCODE, 1000)[0].deadline_ns == NEVER


def test_a_timeout_of_any_size_is_one_that_the_next_step_takes(seal):
    """Triton's largest is that of an unsigned integer of 64 bits."""
    made, _ = Contexts(MODEL, seal).enter(FakeRequest(timeout_us=2**64 - 1), ENCODE, 1000)
    assert Context.from_json(made.to_json()).deadline_ns == NEVER


def test_a_parameter_of_another_verb_is_unknown(seal):
    with pytest.raises(InputError, match="parameter score_mode: unknown here"):
        Contexts(MODEL, seal).enter(FakeRequest({"score_mode": "dense"}), ENCODE, 0)


# --- between the steps

TENSORS = [np.zeros(3, np.int32), np.zeros((2, 4), np.float32)]


def sent(array):
    return FakeRequest(context=array[None])


def test_a_context_survives_writing_and_reading(seal):
    made = Context(ENCODE, {"normalize": False}, "id", "trace", **COUNTED)
    contexts = Contexts(MODEL, seal)
    request = sent(contexts.write(made, TENSORS))
    assert contexts.read(request, TENSORS) == made
    assert contexts.peek(request) == made
    with pytest.raises(InputError, match="accepts only the output of the previous step"):
        contexts.read(request, [TENSORS[0], np.zeros((2, 5), np.float32)])


def test_only_an_open_step_revalidates_options(tmp_path):
    made = Context(ENCODE, {"normalize": "no"}, **COUNTED)
    closed, opened = (Contexts(MODEL, Seal(tmp_path, is_open=is_open)) for is_open in (False, True))
    request = sent(closed.write(made, TENSORS))
    assert closed.read(request, TENSORS) == made
    with pytest.raises(InputError, match="parameter normalize: 'no' is not allowed; give a boolean"):
        opened.read(request, TENSORS)


def test_a_context_of_an_unsupported_verb_is_refused(tmp_path):
    only_encode = Contexts(model_of(replace(MODEL.spec, tasks=("encode",))), Seal(tmp_path, is_open=True))
    request = FakeRequest(context=context("score"))
    with pytest.raises(InputError, match="context: must be as the previous step writes it"):
        only_encode.read(request, [])
    assert only_encode.peek(request) is None
    assert only_encode.peek(FakeRequest()) is None
    assert only_encode.peek(sent(np.zeros(SEAL_BYTES, np.uint8))) is None


def test_the_timing_is_in_the_order_of_its_fields():
    times = {
        name: COUNTED[name] * 10**6
        for name in ("preprocessed_ns", "queue_ns", "batch_wait_ns", "inference_ns", "loading_ns")
    }
    found = timing_ms(Context(ENCODE, {}, arrived_ns=0, **times), 0)
    assert found.dtype == np.float32
    assert found[:4].tolist() == [6, 4, 7, 8]
    assert found[4] == found[5]
    assert found[6] == 9
