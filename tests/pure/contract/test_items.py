"""Items of several kinds: how they combine, and the errors when they cannot."""

import pytest

from sie_triton.contract import VERBS
from sie_triton.contract.score import query_of
from sie_triton.contract.verb import item_tensors, items_of
from sie_triton.errors import InputError
from sie_triton.models.inputs.audio import AudioFile
from sie_triton.models.inputs.several import check_alone

BOTH = ("text", "image")


def test_elements_of_one_kind_are_the_items():
    assert items_of({"text": ["a", ""]}, ("text",)) == ("text", ["a", ""])
    assert [tensor.optional for tensor in item_tensors(("text",))] == [False]
    assert [tensor.optional for tensor in item_tensors(BOTH)] == [True, True]


def test_elements_of_several_kinds_make_items():
    sent = {"text": ["a", "", "", "b"], "image": [b"1", b"2", b"", b""]}
    expected = [{"text": "a", "image": b"1"}, {"image": b"2"}, {"text": ""}, {"text": "b"}]
    assert items_of(sent, BOTH) == ("items", expected)
    assert items_of({"text": [], "image": [b"1"]}, BOTH)[1] == [{"image": b"1"}]
    assert items_of({"text": ["a"], "image": [b""]}, BOTH)[1] == [{"text": "a"}]
    assert items_of({"text": ["", "b"], "image": []}, BOTH)[1] == [{"text": ""}, {"text": "b"}]


@pytest.mark.parametrize(
    ("sent", "kinds", "complaint"),
    [
        ({"text": [], "image": []}, BOTH, "^text and image: are empty; send at least one item"),
        ({"text": ["a"], "image": [b"1", b"2"]}, BOTH, "^text has 1 elements, image has 2 elements; send the same"),
        ({"image": [b"1", b""], "audio": [b"", b""]}, ("image", "audio"), r"^items\[1\]: is empty; send image or"),
        ({"text": ["a", ""], "image": [b"", b""]}, BOTH, r"^items\[1\]: is empty; send text or image"),
        ({"text": [], "image": [b"1", b""]}, BOTH, r"^image\[1\]: is empty; send image"),
    ],
)
def test_inconsistent_inputs_are_refused(sent, kinds, complaint):
    with pytest.raises(InputError, match=complaint):
        items_of(sent, kinds)


def test_a_query_is_an_item_too():
    assert query_of({"query": ["q"]}, ("text",)) == "q"
    assert query_of({"query": ["q"], "query_image": [b"1"]}, BOTH) == {"text": "q", "image": b"1"}
    assert query_of({"query": [], "query_image": [b"1"]}, BOTH) == {"image": b"1"}
    assert query_of({"query": [""], "query_image": []}, BOTH) == {"text": ""}
    assert query_of({"query": ["q"]}, ("document",)) == "q"


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        ({"query": [], "query_image": []}, "^query: has 0 elements; send one"),
        ({"query": ["a", "b"], "query_image": []}, "^query: has 2 elements; send one"),
        ({"query": ["a"], "query_image": [b"1", b"2"]}, "^query_image: has 2 elements; send one"),
        ({"query": [], "query_image": [b""]}, "^query: is empty; send image"),
        ({"query": [""], "query_image": [b""]}, "^query: is empty; send text or image"),
    ],
)
def test_exactly_one_query_is_required(sent, complaint):
    with pytest.raises(InputError, match=complaint):
        query_of(sent, BOTH)


def test_only_models_that_read_images_take_one_as_a_query():
    names = {kinds: [tensor.name for tensor in VERBS["score"].inputs(kinds)] for kinds in (("text",), BOTH)}
    assert names == {("text",): ["query", "text"], BOTH: ["query", "query_image", "text", "image"]}


def test_a_text_beside_a_sound_is_refused_where_one_of_them_is_read():
    sound = AudioFile(b"1", "audio[2]")
    check_alone({"audio": sound}, "audio")
    with pytest.raises(InputError, match=r"^audio\[2\]: the same item has text, and this model reads either text or"):
        check_alone({"audio": sound, "text": "a"}, "audio")
