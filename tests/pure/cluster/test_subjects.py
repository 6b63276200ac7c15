"""No name can become another subject, or a wildcard."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.cluster import subjects
from sie_triton.cluster.subjects import MODEL, NAME, checked_name, model_of, token
from sie_triton.errors import InputError

MODELS = st.from_regex(MODEL, fullmatch=True)
NAMES = st.from_regex(NAME, fullmatch=True)

BAD_NAMES = ["", " ", "a b", "*", "a*", ">", "a.>", "a/b", "a=2E", "a\n", "a\x00", "é", "١", "$JS"]


@given(MODELS)
def test_a_model_is_one_token_from_which_its_name_can_be_read(model):
    assert not set(token(model)) & set(".*> \t\r\n")
    assert model_of(token(model)) == model


@pytest.mark.parametrize("model", [*BAD_NAMES, "m" * 201])
def test_what_is_no_models_name_is_refused(model):
    with pytest.raises(InputError, match="model"):
        token(model)


@pytest.mark.parametrize("name", [*BAD_NAMES, "a.b", "n" * 65])
def test_a_name_that_cannot_be_part_of_a_subject_is_refused(name):
    with pytest.raises(InputError, match="SIE_POOL"):
        checked_name(name, "SIE_POOL")


def test_an_error_shows_the_beginning_of_a_long_name_only():
    for check in (token, lambda name: checked_name(name, "SIE_POOL")):
        with pytest.raises(InputError) as caught:
            check("?" * 5000)
        assert len(str(caught.value)) < 300


@given(NAMES, MODELS)
def test_work_is_on_the_subjects_that_its_stream_listens_to(pool, model):
    for subject, heard in (
        (subjects.work(pool, model), subjects.all_work(pool)),
        (subjects.dead(pool, model), subjects.DEAD_SUBJECTS.replace(">", "*.*")),
    ):
        assert fnmatch.fnmatchcase(subject, heard)
        assert len(subject.split(".")) == len(heard.split("."))
        assert model_of(subject.rpartition(".")[2]) == model


@given(NAMES, NAMES)
def test_two_pools_share_neither_stream_nor_subject(one, other):
    made = [
        {
            subjects.stream(pool),
            subjects.claims(pool),
            subjects.work(pool, "m"),
            subjects.dead(pool, "m"),
            subjects.answers(pool),
            subjects.cancelled(pool),
            subjects.wanted(pool),
            subjects.questions(pool),
            subjects.worker_health(pool, "w"),
        }
        for pool in (one, other)
    ]
    assert [len(each) for each in made] == [9, 9]
    assert one == other or not made[0] & made[1]
