"""Errors of single items in SIE's extract: HTTP 200, and an error in the result of the item at fault."""

import pytest

from sie_triton.errors import BusyError, InputError
from tests.pure.doors.test_doors_places import serving
from tests.support.doors import door_of, post


def extract(door, *texts, **given):
    items = [{"text": text, "id": f"t{i}"} for i, text in enumerate(texts)]
    return post(door, {"items": items, **given}, "/v1/extract/org/m")


@pytest.mark.parametrize("texts", [["bad"], ["a", "bad", "b", "bad"], ["bad", "bad"]])
def test_an_item_at_fault_spoils_no_other_item(texts):
    door, backend = door_of()
    answer = extract(door, *texts)
    found = answer.json()
    assert answer.status_code == 200
    assert [each["id"] for each in found["items"]] == [f"t{i}" for i in range(len(texts))]
    for i, (text, item) in enumerate(zip(texts, found["items"], strict=True)):
        expected = {"code": "INVALID_INPUT", "message": f"text[{i}]: is bad"} if text == "bad" else None
        assert item.get("error") == expected
    assert found["usage"] == {"input_tokens": len([text for text in texts if text != "bad"])}
    assert len(backend.asked) == (1 if len(texts) == 1 else 1 + len(texts))


def test_known_entities_and_labels_go_with_each_item(monkeypatch):
    door, backend = serving(monkeypatch, "glirel")
    known = [[{"start": 0, "end": 3}], []]
    items = [{"text": text, "metadata": {"entities": of}} for text, of in zip(("bad", "a"), known, strict=True)]
    assert post(door, {"items": items, "params": {"labels": ["x"]}}, "/v1/extract/org/m").status_code == 200
    assert [each[2:4] for each in backend.asked] == [(["x"], known), (["x"], known[:1]), (["x"], known[1:])]


@pytest.mark.parametrize(
    ("failure", "status"), [(InputError.at("labels[0]", "is empty"), 400), (BusyError("busy", retry_after_s=1), 503)]
)
def test_an_error_of_the_request_fails_it_as_a_whole(failure, status):
    door, backend = door_of()
    backend.failure = failure
    assert extract(door, "a", "bad").status_code == status
    assert extract(door, "a").status_code == status
    backend.asked.clear()
    assert extract(door, "a", "b").status_code == status
    assert len(backend.asked) == 1, "no item is to blame, so none is sent again"
