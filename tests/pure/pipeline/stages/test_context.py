"""A request's context on its way through the steps: it holds all facts, and loses none."""

import pytest

from sie_triton.contract import VERBS
from sie_triton.contract.spec import Profile
from sie_triton.errors import InputError
from sie_triton.models.families import model_of
from sie_triton.pipeline.scheduling.job import NEVER
from sie_triton.pipeline.stages.context import Context, Contexts, of_profile
from tests.support.family_double import NAME
from tests.support.stages import FakeRequest, spec

ENCODE, SCORE = VERBS["encode"], VERBS["score"]
COUNTED = {f"{name}_ns": i for i, name in enumerate(("preprocessed", "queue", "batch_wait", "inference", "loading"), 1)}
COUNTED |= {"num_items": 6, "arrived_ns": 7, "deadline_ns": 8, "ticket": 9}


def test_every_field_comes_back_as_itself():
    options, pages = {"score_mode": "dense", "k": 0.5, "b": True}, [[], [1, 3]]
    made = Context(SCORE, options, "an id", "a trace", "a call", **COUNTED, pages=pages, truncated=[0, 3], is_bulk=True)
    assert Context.of(made.fields()) == made


@pytest.mark.parametrize(("given", "is_bulk"), [({}, False), ({"sie_bulk": True}, True), ({"sie_bulk": False}, False)])
def test_a_request_may_ask_to_give_way_to_others(given, is_bulk):
    context, parameters = Contexts(MODEL).enter(FakeRequest(given), ENCODE)
    assert (context.is_bulk, parameters) == (is_bulk, {})


@pytest.mark.parametrize("wrong", ["false", 1])
def test_only_a_boolean_asks_to_give_way(wrong):
    with pytest.raises(InputError, match=r"^parameter sie_bulk: "):
        Contexts(MODEL).enter(FakeRequest({"sie_bulk": wrong}), ENCODE)


# --- what holds for a request

OTHERS = {"output_types": "tags", "output_dtype": "int8", "is_query": True, "dimensions": 4, "normalize": False}
OTHERS |= {"threshold": 0.5, "labels": "near", "score_mode": "sparse"}
TASKS = {"tasks": ("encode", "score"), "score_modes": ("dense", "sparse")}
PROFILES = (Profile(), Profile("other", OTHERS, instruction="find"))
MODEL = model_of(spec(family=NAME, dims={"dense": 8, "tags": 4}, profiles=PROFILES, **TASKS))

TRAVELLING = [
    (ENCODE, "output_types", "dense"),
    (ENCODE, "dimensions", 2),
    (ENCODE, "labels", "far,near"),
    (SCORE, "score_mode", "dense"),
]


@pytest.mark.parametrize(("verb", "name", "value"), TRAVELLING)
def test_request_options_override_the_profile_and_the_profile_the_defaults(verb, name, value):
    contexts = Contexts(MODEL)

    def options(**given):
        return contexts.enter(FakeRequest(given), verb)[0].options

    of_profile = MODEL.spec.profile("other").parameters
    assert name not in options()
    assert options(profile="other")[name] == of_profile[name] != value
    assert options(profile="other", **{name: value}) == {**options(profile="other"), name: value}
    assert options(**{name: value}) == {name: value}
    assert options(profile="default", **{name: value}) == {name: value}


def test_a_profile_passes_each_verb_only_its_options():
    contexts = Contexts(MODEL)
    found = {
        verb.name: set(contexts.enter(FakeRequest({"profile": "other"}), verb)[0].options) for verb in (ENCODE, SCORE)
    }
    own = {"threshold", "labels"}
    assert found == {
        "encode": {"output_types", "output_dtype", "is_query", "dimensions", "normalize", *own},
        "score": {"score_mode", *own},
    }
    assert of_profile(MODEL.spec.profile("other"), {"normalize", "nope"}) == {"normalize": False}


def test_options_that_only_the_prompt_needs_are_not_sent_on():
    given = {"instruction": "find", "profile": "other", "normalize": True}
    made, read = Contexts(MODEL).enter(FakeRequest(given), ENCODE)
    assert read == given
    assert made.options.keys().isdisjoint({"instruction", "profile"})


def test_options_do_not_leak_into_the_next_request():
    contexts = Contexts(MODEL)
    made, _ = contexts.enter(FakeRequest({"profile": "other"}), ENCODE)
    made.options["dimensions"] = 1
    assert contexts.enter(FakeRequest({"profile": "other"}), ENCODE)[0].options["dimensions"] == 4


def test_the_id_trace_and_timeout_of_a_request_are_kept():
    headers = {"X-Request-Id": "of the header", "traceparent": f"00-{7:032x}-{8:016x}-00"}
    request = FakeRequest(headers, timeout_us=7)
    request.arrived_ns = 1000
    made, given = Contexts(MODEL).enter(request, ENCODE)
    assert (made.verb, made.id, made.trace) == (ENCODE, "of the header", f"{7:032x}")
    assert (made.arrived_ns, made.deadline_ns) == (1000, 1000 + 7000)
    assert not given  # neither header is a parameter
    request.id = "of the body"
    assert Contexts(MODEL).enter(request, ENCODE)[0].id == "of the body"
    assert Contexts(MODEL).enter(FakeRequest({}), ENCODE)[0].deadline_ns == NEVER


def test_a_timeout_of_any_size_is_one_that_the_next_step_takes():
    """Triton's largest is that of an unsigned integer of 64 bits."""
    made, _ = Contexts(MODEL).enter(FakeRequest(timeout_us=2**64 - 1), ENCODE)
    assert made.deadline_ns == NEVER


def test_a_parameter_of_another_verb_is_unknown():
    with pytest.raises(InputError, match="parameter score_mode: unknown here"):
        Contexts(MODEL).enter(FakeRequest({"score_mode": "dense"}), ENCODE)
