"""Outputs of SIE's encode: which are answered if none is asked for, and the name of MUVERA's vector."""

import asyncio

import pytest

from sie_triton.contract.spec import Profile
from tests.support.doors import TIMING, door_of, post
from tests.support.stages import spec

BOTH, LATE = {"dense": 4, "multivector": 4}, {"multivector": 4, "muvera": 4}
ALONE = {"multivector": 4}


@pytest.mark.parametrize(
    ("dims", "profile", "asked", "computed", "answered"),
    [
        (BOTH, "dense,multivector", None, ["dense"], "dense"),
        (BOTH, "multivector", None, ["multivector"], "multivector"),
        (BOTH, "dense,multivector", ["multivector"], ["multivector"], "multivector"),
        (ALONE, "multivector", None, ["multivector"], "multivector"),
        (LATE, "multivector,muvera", None, ["muvera"], "dense"),
        (LATE, "muvera", None, ["muvera"], "dense"),
        (LATE, "multivector", None, ["multivector"], "multivector"),
        (LATE, "muvera", ["dense"], ["muvera"], "dense"),
        (LATE, "muvera", ["muvera"], ["muvera"], "muvera"),
        ({**LATE, "dense": 4}, "dense,muvera", ["dense"], ["dense"], "dense"),
        ({**LATE, "dense": 4}, "muvera", None, ["muvera"], "muvera"),
    ],
)
@pytest.mark.parametrize("name", ["", ":p", "@p"])
def test_the_outputs_are_those_of_sies_server(monkeypatch, dims, profile, asked, computed, answered, name):
    door, backend = door_of()
    profiles = (Profile("default"), Profile("p", {"output_types": profile}))
    served = spec(dims=dims, profiles=profiles if name else (Profile("default", {"output_types": profile}),))

    async def specification(*_):
        return served

    monkeypatch.setattr(door.served, "recent", specification)
    backend.outputs = computed
    body = {"items": ["a"], "params": {} if asked is None else {"output_types": asked}}
    answer = post(door, body, f"/v1/encode/org/m{name}").json()
    assert backend.asked[0][3]["output_types"] == computed
    assert [*answer["items"][0]] == [answered]


@pytest.mark.parametrize(("verb", "where"), [("encode", "params"), ("score", ""), ("extract", "params")])
@pytest.mark.parametrize(
    ("policy", "status", "code"),
    [
        (None, 200, None),
        ("default", 200, None),
        ("truncate_text", 200, None),
        ("error", 400, "INPUT_TOO_LONG"),
        ("no", 400, "INVALID_INPUT"),
        (1, 400, "INVALID_INPUT"),
    ],
)
def test_the_request_says_whether_a_text_may_be_too_long(verb, where, policy, status, code):
    door, backend = door_of()
    backend.cut = {1}
    options = {"options": {} if policy is None else {"overflow_policy": policy}}
    body = {"items": ["a", "b"], **({where: options} if where else {"query": "q", **options})}
    answer = post(door, body, f"/v1/{verb}/org/m")
    assert (answer.status_code, answer.headers.get("X-SIE-Error-Code")) == (status, code)
    if code == "INPUT_TOO_LONG":
        assert answer.json()["detail"]["message"].startswith("items[1]: ")
    assert not any("overflow_policy" in each[-1] for each in backend.asked)


@pytest.mark.parametrize("identity", [5, "b"])
def test_a_text_that_is_too_long_to_score_is_found_by_its_id(identity):
    door, backend = door_of()

    async def score(*_):
        entry = {"item_id": str(identity), "score": 1.0, "rank": 0, "truncated": True}
        return {"model": "org/m", "scores": [entry], "token_count": 1, "timing": TIMING}

    backend.score = score
    items = [{"text": "a", "id": "x"}, {"text": "b", "id": identity}]
    answer = post(door, {"query": "q", "items": items, "options": {"overflow_policy": "error"}}, "/v1/score/org/m")
    assert (answer.status_code, answer.headers["X-SIE-Error-Code"]) == (400, "INPUT_TOO_LONG")
    assert answer.json()["detail"]["message"].startswith("items[1]: ")


def test_one_vector_under_two_names_is_refused(monkeypatch):
    door, backend = door_of()

    async def specification(*_):
        return spec(dims=LATE)

    monkeypatch.setattr(door.served, "recent", specification)
    answer = post(door, {"items": ["a"], "params": {"output_types": ["dense", "muvera"]}})
    assert (answer.status_code, backend.asked) == (400, [])
    assert answer.json()["detail"]["message"].startswith("params.output_types: ")


@pytest.mark.parametrize("verb", ["encode", "score", "extract"])
def test_a_specification_that_does_not_come_delays_no_request_beyond_its_time(monkeypatch, verb):
    door, backend = door_of()
    waited = []

    async def never(*_):
        try:
            await asyncio.sleep(600)
        finally:
            waited.append(verb)

    monkeypatch.setattr(door.served, "spec", never)
    body = {"items": ["a"], **({"query": "q"} if verb == "score" else {})}
    assert post(door, body, f"/v1/{verb}/org/m", headers={"X-Request-Timeout": "0.2"}).status_code == 200
    assert (waited, len(backend.asked)) == ([verb], 1)


def test_the_time_of_an_extraction_may_be_over_before_it_is_sent():
    door, backend = door_of()
    answer = post(door, {"items": ["a"]}, "/v1/extract/org/m", headers={"X-Request-Timeout": "5e-324"})
    assert (answer.status_code, answer.json()["detail"]["code"], backend.asked) == (504, "DEADLINE_EXCEEDED", [])


@pytest.mark.parametrize("verb", ["encode", "score", "extract"])
@pytest.mark.parametrize(
    ("weights", "revision"),
    [("hub://org/m@abc", "abc"), ("hub://org/m", None), ("package://a/b@c", None), ("/models/a@b", None)],
)
def test_the_revision_that_a_model_file_names_is_in_a_header(monkeypatch, verb, weights, revision):
    door, _ = door_of()

    async def specification(*_):
        return spec(weights=weights)

    monkeypatch.setattr(door.served, "recent", specification)
    body = {"items": ["a"], **({"query": "q"} if verb == "score" else {})}
    assert post(door, body, f"/v1/{verb}/org/m").headers.get("X-SIE-Model-Revision") == revision


def test_the_tokens_read_are_reported_in_the_body_and_in_a_header():
    door, _ = door_of()
    answer = post(door, {"items": ["a", "b"]}, headers={"X-Request-ID": "mine"})
    assert answer.json()["usage"] == {"input_tokens": 2}
    assert answer.headers["X-SIE-Units-Input-Tokens"] == "2"
    assert answer.headers["X-SIE-Request-ID"] == "mine"
