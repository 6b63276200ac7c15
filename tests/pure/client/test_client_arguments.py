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


TIMEOUTS = [float("inf"), float("nan"), 0, -1, 1e300, 10**400, "5", True]
CALLS = {
    "encode": lambda client, items: client.encode(MODEL, items),
    "score": lambda client, items: client.score(MODEL, "query", items),
    "extract": lambda client, items: client.extract(MODEL, items, ["a"]),
    "query": lambda client, query: client.score(MODEL, query, ["a"]),
    "labels": lambda client, labels: client.extract(MODEL, "text", labels),
    "entities": lambda client, given: client.extract(MODEL, given[0], entities=given[1]),
    "named": lambda client, options: client.extract(MODEL, "a", ["a"], **options),
    "options": lambda client, options: client.encode(MODEL, "a", options=options),
    "timeout": lambda client, timeout: client.encode(MODEL, "a", timeout=timeout),
    "encode model": lambda client, model: client.encode(model, "a"),
    "score model": lambda client, model: client.score(model, "a", ["b"]),
    "extract model": lambda client, model: client.extract(model, "a", ["b"]),
}
GIVEN = {
    **dict.fromkeys(("encode", "score", "extract"), ITEMS),
    **{f"{verb} model": {"model": [None, "", b"a", 3]} for verb in ("encode", "score", "extract")},
    "query": {"query[^:]*": [None, b"a", {"txt": "a"}, {}, ["a"], {"image": b""}]},
    "labels": LABELS,
    "entities": ENTITIES,
    "named": OPTIONS_OF_EXTRACT,
    "options": OPTIONS,
    "timeout": {"timeout": TIMEOUTS},
}
CASES = [(call, field, value) for call, table in GIVEN.items() for field, values in table.items() for value in values]


@pytest.mark.parametrize(("call", "field", "value"), CASES)
def test_a_wrong_argument_is_named(kind, call, field, value):
    with kind(NOBODY) as client:
        raises_exactly(lambda: CALLS[call](client, value), InputError, f"^{field}: ")


URLS = [
    *("https://host", "http://host", "ftp://host:8000", "host", "", "http://:8000", "http://ho st:8000"),
    *("http://host:99999", "http://[::1:8000", "http://host:8000?key=1", "grpc://host:8001/path"),
    *("host:8001/path", None, 8000),
]
OF_ALL_CALLS = {"url": URLS, "timeout": TIMEOUTS, "max_concurrency": [0, -1, 1.5, None]}


@pytest.mark.parametrize(("name", "value"), [(name, each) for name, values in OF_ALL_CALLS.items() for each in values])
def test_a_wrong_argument_of_the_client_is_named(kind, name, value):
    raises_exactly(lambda: kind(**{"url": NOBODY, name: value}), InputError, f"^{name}: ")


def test_an_unknown_argument_is_refused(kind):
    with kind(NOBODY) as client, pytest.raises(TypeError, match=r"extract\(\) takes no label"):
        client.extract(MODEL, "a", label=["a"])


def test_a_password_is_not_repeated(kind):
    with pytest.raises(InputError, match=r"^url: ") as caught:
        kind("http://user:secret@host:8000")
    assert "secret" not in str(caught.value)


def test_no_items_no_results(kind):
    with kind(NOBODY) as client:
        assert client.encode(MODEL, []) == []
        assert client.extract(MODEL, [], ["a"], []) == []
        assert client.score(MODEL, {"text": "a", "id": "q"}, []) == {"model": MODEL, "scores": [], "query_id": "q"}
