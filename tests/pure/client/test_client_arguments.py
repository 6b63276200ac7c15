"""Arguments that both clients refuse themselves, without a server."""

import numpy as np
import pytest

from sie_triton import InputError
from tests.support.clients import KINDS, MODEL, raises_exactly

pytestmark = KINDS
NOBODY = "http://127.0.0.1:9"
SAMPLES = {"sample_rate": 8}

# Field of the error → values that get it.
ITEMS = {
    r"items\[1\].txt": [["a", {"txt": "b"}]],
    r"items\[0\].video": [[{"text": "a", "video": b"mp4"}]],
    r"items\[0\].image": [
        [{"image": 5}],
        [{"image": "https://example.com/a.png"}],
        [{"image": "nothing.png"}],
        [{"image": np.zeros((2, 2, 3))}],
        [{"image": np.zeros((0, 0, 3), np.uint8)}],
    ],
    r"items\[1\].image": [["a", {"image": b""}], ["a", {"images": [bytearray()], "text": "b"}]],
    r"items\[0\].images": [[{"images": [b"a", b"b"]}], [{"images": [b"a"], "image": b"a"}]],
    r"items\[0\].image.lora": [[{"image": {"data": b"a", "lora": "b"}}]],
    r"items\[0\].audio": [[{"audio": 5}], [{"audio": np.zeros(9)}], [{"audio": {"data": b""}}]],
    r"items\[0\].audio.sample_rate": [
        [{"audio": {"data": np.zeros(9), **rate}}] for rate in ({}, {"sample_rate": 8e3})
    ],
    r"items\[0\].audio.data": [
        [{"audio": {"data": np.zeros(9, np.uint8), **SAMPLES}}],
        [{"audio": {"data": np.zeros((0, 2)), **SAMPLES}}],
        [{"audio": {"data": np.zeros((2, 2, 2)), **SAMPLES}}],
    ],
    r"items\[0\].document": [[{"document": 5}], [{"document": "/dev/null"}]],
    r"items\[0\].text": [[{"text": None}]],
    r"items\[0\]": [[{"id": "1"}], [{}], [None], [b"a"], ["\ud800"]],
    "items": [None, b"a", 5],
}
LABELS = {
    "labels": ["person", b"person", {"person": 1}, 3],
    r"labels\[1\]": [["a", b"b"], ["a", None], ["a", "\ud800"]],
}
ENTITIES = {
    r"entities\[0\]": [
        ("a", {"start": 0}),
        ("a", [{"start": object()}]),
        ("a", [{"label": "\ud800"}]),
        (["a"], [{"start": 0, "end": 1}]),
    ],
    r"entities\[0\]\[0\]": [("a", [3])],
    "entities": [(["a", "b"], [[]]), (["a"], "a"), (["a"], 3)],
}
OPTIONS_OF_EXTRACT = {
    "threshold": [{"threshold": [0.5]}],
    "label_thresholds": [{"threshold": {"a": object()}}, {"options": {"label_thresholds": {"a": object()}}}],
    "label_descriptions": [{"label_descriptions": ["a"]}],
    "output_schema": [{"output_schema": {"a": {1}}}],
}
OPTIONS = {
    "options": [[("dimensions", 3)], {3: 3}],
    "dimensions": [{"dimensions": [3]}, {"dimensions": None}, {"dimensions": 2**63}],
    "timeout": [{"timeout": 3}],
    "priority": [{"priority": 3}],
}


def rows(table):
    return [(f"^{field}: ", value) for field, values in table.items() for value in values]


@pytest.mark.parametrize(("field", "items"), rows(ITEMS))
def test_items(kind, items, field):
    with kind(NOBODY) as client:
        for call in (
            lambda: client.encode(MODEL, items),
            lambda: client.score(MODEL, "query", items),
            lambda: client.extract(MODEL, items, ["a"]),
        ):
            raises_exactly(call, InputError, field)


@pytest.mark.parametrize("query", [None, b"a", {"txt": "a"}, {}, ["a"], {"image": b""}])
def test_queries(kind, query):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.score(MODEL, query, ["a"]), InputError, "^query")


@pytest.mark.parametrize(("field", "labels"), rows(LABELS))
def test_labels(kind, labels, field):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.extract(MODEL, "text", labels), InputError, field)


@pytest.mark.parametrize(("field", "given"), rows(ENTITIES))
def test_entities(kind, given, field):
    items, entities = given
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.extract(MODEL, items, entities=entities), InputError, field)


@pytest.mark.parametrize(("field", "options"), rows(OPTIONS_OF_EXTRACT))
def test_options_of_extract(kind, options, field):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.extract(MODEL, "a", ["a"], **options), InputError, field)


def test_an_unknown_argument_is_refused(kind):
    with kind(NOBODY) as client, pytest.raises(TypeError, match=r"extract\(\) takes no label"):
        client.extract(MODEL, "a", label=["a"])


@pytest.mark.parametrize("model", [None, "", b"a", 3])
def test_model_names(kind, model):
    with kind(NOBODY) as client:
        for call in (
            lambda: client.encode(model, "a"),
            lambda: client.score(model, "a", ["b"]),
            lambda: client.extract(model, "a", ["b"]),
        ):
            raises_exactly(call, InputError, "^model: ")


@pytest.mark.parametrize(("field", "options"), rows(OPTIONS))
def test_options(kind, options, field):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.encode(MODEL, "a", options=options), InputError, field)


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 0, -1, 1e300, 10**400, "5", True])
def test_timeouts(kind, timeout):
    raises_exactly(lambda: kind(NOBODY, timeout=timeout), InputError, "^timeout: ")
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.encode(MODEL, "a", timeout=timeout), InputError, "^timeout: ")


@pytest.mark.parametrize(
    "url",
    [
        *("https://host", "http://host", "ftp://host:8000", "host", "", "http://:8000", "http://ho st:8000"),
        *("http://host:99999", "http://[::1:8000", "http://host:8000?key=1", "grpc://host:8001/path"),
        *("host:8001/path", None, 8000),
    ],
)
def test_urls(kind, url):
    raises_exactly(lambda: kind(url), InputError, "^url: ")


def test_a_password_is_not_repeated(kind):
    with pytest.raises(InputError, match=r"^url: ") as caught:
        kind("http://user:secret@host:8000")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("number", [0, -1, 1.5, None])
def test_concurrency(kind, number):
    raises_exactly(lambda: kind(NOBODY, max_concurrency=number), InputError, "^max_concurrency: ")


def test_no_items_no_results(kind):
    with kind(NOBODY) as client:
        assert client.encode(MODEL, []) == []
        assert client.extract(MODEL, [], ["a"], []) == []
        assert client.score(MODEL, {"text": "a", "id": "q"}, []) == {"model": MODEL, "scores": [], "query_id": "q"}
