"""Fields in the wrong place of a request to SIE's routes, and elements without bytes: errors that name the field."""

import msgpack
import pytest

from sie_triton.doors import openapi_sie
from sie_triton.doors.openapi import page
from tests.support.doors import door_of, post
from tests.support.stages import spec

ITEM = {"text": "a"}
EMPTY = ("image", "audio", "document")


def refused(body, path="/v1/encode/org/m", **options):
    door, backend = door_of()
    response = post(door, body, path, **options)
    assert (response.status_code, backend.asked) == (400, [])
    detail = response.json()["detail"]
    assert detail["code"] == "INVALID_INPUT"
    return detail["message"]


@pytest.mark.parametrize("name", ["is_query", "dimensions", "lora", "profile", "normalize", "no_such_name"])
@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("{}", {"items": [ITEM], "{}": 1}),
        ("{}", {"items": [ITEM], "{}": None}),
        ("params.{}", {"items": [ITEM], "params": {"{}": 1}}),
        ("items[1].{}", {"items": [ITEM, {**ITEM, "{}": 1}]}),
        ("items[0].image.{}", {"items": [{"image": {"data": "abcd", "{}": 1}}]}),
        ("items[0].image.{}", {"items": [{"images": [{"data": "abcd", "{}": 1}]}]}),
        ("items[0].audio.{}", {"items": [{"audio": {"data": "abcd", "{}": 1}}]}),
        ("items[0].document.{}", {"items": [{"document": {"data": "abcd", "{}": 1}}]}),
    ],
)
@pytest.mark.parametrize("verb", ["encode", "extract"])
def test_a_parameter_outside_the_options_is_refused_with_its_place(name, where, body, verb):
    told = refused(_named(body, name), f"/v1/{verb}/org/m")
    assert told.startswith(f"{where.format(name)}: ")
    assert f"params.options.{name};" in told


@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("{}", {"query": "q", "items": [ITEM], "{}": 1}),
        ("query.{}", {"query": {**ITEM, "{}": 1}, "items": [ITEM]}),
        ("items[0].{}", {"query": "q", "items": [{**ITEM, "{}": 1}]}),
    ],
)
def test_a_parameter_of_score_belongs_in_its_options(where, body):
    told = refused(_named(body, "lora"), "/v1/score/org/m")
    assert told.startswith(f"{where.format('lora')}: ")
    assert " options.lora;" in told


def _named(value, name):
    """Return `value` with `name` in place of the key {}."""
    if isinstance(value, dict):
        return {key.replace("{}", name): _named(each, name) for key, each in value.items()}
    return [_named(each, name) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("verb", "body", "field", "home"),
    [
        ("encode", {"items": [ITEM], "output_types": ["dense"]}, "output_types", "in params;"),
        ("encode", {"items": [ITEM], "options": {"lora": "a"}}, "options", "in params.options;"),
        ("encode", {"items": [ITEM], "text": "a"}, "text", "items[i].text;"),
        ("encode", {"items": [ITEM], "params": {"items": []}}, "params.items", "at the top level of the body;"),
        ("encode", {"items": [{**ITEM, "instruction": "a"}]}, "items[0].instruction", "in params;"),
        ("extract", {"items": [ITEM], "labels": ["a"]}, "labels", "in params;"),
        ("extract", {"items": [ITEM], "params": {"metadata": {}}}, "params.metadata", "items[i].metadata;"),
        ("score", {"query": "q", "items": [ITEM], "params": {}}, "params", "in options;"),
        ("score", {"query": {**ITEM, "instruction": "a"}, "items": [ITEM]}, "query.instruction", "top level"),
    ],
)
def test_a_known_field_in_another_place_is_refused_with_its_place(verb, body, field, home):
    told = refused(body, f"/v1/{verb}/org/m")
    assert told.startswith(f"{field}: ")
    assert home in told


def test_parameters_in_the_url_are_refused():
    told = refused(None, "/v1/encode/org/m?is_query=true&lora=a")
    assert told.startswith("URL?is_query: ")
    assert "params.options.is_query" in told


@pytest.mark.parametrize("key", [b"is_query", "a\nb", "x" * 500])
def test_any_key_is_named_in_one_short_line(key):
    body = msgpack.packb({"items": [{**ITEM, key: 1}]})
    told = refused(None, json=None, content=body, headers={"Content-Type": "application/msgpack"})
    assert "\n" not in told
    assert len(told) < 400


def test_fields_that_sies_clients_send_are_accepted():
    item = {"id": "a", "text": "b", "images": [{"data": "abcd", "format": "jpeg"}], "metadata": {"source": "c"}}
    sound = {"audio": {"data": "abcd", "format": "wav", "sample_rate": 8000}}
    params = {"output_types": ["dense"], "output_dtype": "float32", "instruction": "i", "options": {"is_query": True}}
    door, backend = door_of()
    assert post(door, {"items": [item, sound, {"document": {"data": "abcd", "format": "pdf"}}], "params": params})
    ((_, items, _, parameters),) = backend.asked
    assert [sorted(each) for each in items] == [["id", "image", "text"], ["audio"], ["document"]]
    assert parameters["is_query"] is True
    assert parameters["instruction"] == "i"


@pytest.mark.parametrize("kind", EMPTY)
@pytest.mark.parametrize("value", ["", "data:image/png;base64,", {"data": ""}, {"data": "data:a/b;base64,"}, b""])
def test_a_file_without_bytes_is_refused(kind, value):
    headers = {"Content-Type": "application/msgpack"}
    for path, field, body in (
        ("encode", f"items[3].{kind}", {"items": [ITEM, ITEM, ITEM, {kind: value}]}),
        ("encode", f"items[0].{kind}", {"items": [{kind: value, "text": "a"}]}),
        ("score", f"query.{kind}", {"query": {kind: value}, "items": [ITEM]}),
    ):
        told = refused(None, f"/v1/{path}/org/m", json=None, content=msgpack.packb(body), headers=headers)
        assert told.startswith(f"{field}: is empty")


def test_the_list_of_routes_shows_the_fields_of_items():
    made = openapi_sie.encode(9, [spec(family="clip", inputs=("text", "image"), engine="torch")])
    shown = page({"info": {"title": "t", "version": "1"}, "paths": {"/v1/encode": {"post": made}}})
    for name, kind in (("items", "list of string; or object"), ("items[].text", "string"), ("items[].image", "file")):
        assert f"<code>{name}</code><td>{kind}<td>" in shown


KNOWN = [{"text": "a", "label": "X", "start": 0, "end": 1}]


@pytest.mark.parametrize(("family", "read"), [("glirel", [KNOWN, []]), ("gliner", None)])
def test_models_of_relations_read_the_entities_in_the_metadata(monkeypatch, family, read):
    door, backend = serving(monkeypatch, family)
    items = [{**ITEM, "metadata": {"entities": each}} for each in (KNOWN, [])]
    assert post(door, {"items": items, "params": {"labels": ["x"]}}, "/v1/extract/org/m").status_code == 200
    assert backend.asked[0][3] == read


@pytest.mark.parametrize("metadata", [{}, {"metadata": {"note": 1}}, {"metadata": {"entities": "Ada"}}])
def test_metadata_without_a_list_of_entities_is_refused(monkeypatch, metadata):
    door, backend = serving(monkeypatch, "glirel")
    body = {"items": [{**ITEM, "metadata": {"entities": []}}, ITEM | metadata], "params": {"labels": ["x"]}}
    response = post(door, body, "/v1/extract/org/m")
    assert (response.status_code, backend.asked) == (400, [])
    assert response.json()["detail"]["message"].startswith("items[1].metadata.entities: ")


def serving(monkeypatch, family):
    door, backend = door_of()

    async def specification(*_):
        return spec(family=family, tasks=("extract",), dims={})

    monkeypatch.setattr(door.served, "recent", specification)
    return door, backend
