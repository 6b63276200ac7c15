"""Arguments that both clients refuse themselves, without a server."""

import numpy as np
import pytest

from sie_triton import InputError
from tests.support.clients import KINDS, MODEL, raises_exactly

pytestmark = KINDS
NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("items", "complaint"),
    [
        (["a", {"txt": "b"}], r"items\[1\].txt: is not allowed; send a string, or"),
        ([{"text": "a", "video": b"mp4"}], r"items\[0\].video: is not allowed"),
        ([{"image": 5}], r"items\[0\].image: must be a file, not int; give its bytes, its path, a PIL image"),
        ([{"image": "https://example.com/a.png"}], r"items\[0\].image: is a URL, which the client does not download"),
        ([{"image": "nothing.png"}], r"items\[0\].image: cannot be read \(.*No such file"),
        (
            [{"image": np.zeros((2, 2, 3))}],
            r"items\[0\].image: an array float64 \[2, 2, 3\] cannot be sent as an image",
        ),
        ([{"images": [b"a", b"b"]}], r"items\[0\].images: must be a list of one image"),
        ([{"images": [b"a"], "image": b"a"}], r"items\[0\].images: must be a list of one image"),
        ([{"audio": 5}], r"items\[0\].audio: must be a file, not int; give its bytes, its path, or {\"data\": array"),
        ([{"audio": np.zeros(9)}], r"items\[0\].audio: an array alone has no sampling rate; give"),
        ([{"audio": {"data": np.zeros(9)}}], r"audio.sample_rate: must be a positive integer, .*got None"),
        ([{"audio": {"data": np.zeros(9), "sample_rate": 8e3}}], r"audio.sample_rate: must be a positive .*got 8000.0"),
        (
            [{"audio": {"data": np.zeros(9, np.uint8), "sample_rate": 8}}],
            r"audio.data: an array uint8 \[9\] cannot be sent as audio",
        ),
        (
            [{"audio": {"data": np.zeros((0, 2)), "sample_rate": 8}}],
            r"audio.data: an array float64 \[0, 2\] cannot be sent as audio",
        ),
        ([{"audio": {"data": np.zeros((2, 2, 2)), "sample_rate": 8}}], r"float64 \[2, 2, 2\] cannot be sent as audio"),
        ([{"document": 5}], r"items\[0\].document: must be a file, not int; give its bytes or its path"),
        (["a", {"image": b""}], r"items\[1\].image: is empty"),
        (["a", {"images": [bytearray()], "text": "b"}], r"items\[1\].image: is empty"),
        ([{"audio": {"data": b""}}], r"items\[0\].audio: is empty"),
        ([{"document": "/dev/null"}], r"items\[0\].document: is empty"),
        ([{"image": np.zeros((0, 0, 3), np.uint8)}], r"items\[0\].image: "),
        ([{"image": {"data": b"a", "lora": "b"}}], r"items\[0\].image.lora: is not allowed; allowed are data"),
        ([{"id": "1"}], r"items\[0\]: has none of text, image, audio, document"),
        ([{}], r"items\[0\]: has none of text, image, audio, document"),
        ([None], r"items\[0\]: must be a string or a mapping, not NoneType"),
        ([b"a"], r"items\[0\]: must be a string or a mapping, not bytes"),
        ([{"text": None}], r"items\[0\].text: must be a string, not NoneType"),
        (["\ud800"], r"items\[0\]: cannot be sent as UTF-8"),
        (None, "items: must be an item or a list of items, not NoneType"),
        (b"a", "items: must be an item or a list of items, not bytes"),
        (5, "items: must be an item or a list of items, not int"),
    ],
)
def test_items(kind, items, complaint):
    with kind(NOBODY) as client:
        for call in (
            lambda: client.encode(MODEL, items),
            lambda: client.score(MODEL, "query", items),
            lambda: client.extract(MODEL, items, ["a"]),
        ):
            raises_exactly(call, InputError, complaint)


@pytest.mark.parametrize("query", [None, b"a", {"txt": "a"}, {}, ["a"], {"image": b""}])
def test_queries(kind, query):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.score(MODEL, query, ["a"]), InputError, "^query")


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ("person", "labels: must be a list of texts, not str"),
        (b"person", "labels: must be a list of texts, not bytes"),
        ({"person": 1}, "labels: must be a list of texts, not dict"),
        (3, "labels: must be a list of texts, not int"),
        (["a", b"b"], r"labels\[1\]: must be a string, not bytes"),
        (["a", None], r"labels\[1\]: must be a string, not NoneType"),
        (["a", "\ud800"], r"labels\[1\]: cannot be sent as UTF-8"),
    ],
)
def test_labels(kind, labels, complaint):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.extract(MODEL, "text", labels), InputError, complaint)


@pytest.mark.parametrize(
    ("items", "entities", "complaint"),
    [
        ("a", {"start": 0}, r"entities\[0\]: must be a list of entities, not dict"),
        ("a", [3], r"entities\[0\]\[0\]: must be a mapping, not int; give {\"start\": …, "),
        ("a", [{"start": object()}], r"entities\[0\]: cannot be converted to JSON"),
        ("a", [{"label": "\ud800"}], r"entities\[0\]: cannot be sent as UTF-8"),
        (["a", "b"], [[]], "entities: has 1 lists for 2 items; send one list for each item"),
        (["a"], [{"start": 0, "end": 1}], r"entities\[0\]: must be a list of entities, not dict"),
        (["a"], "a", "entities: must be a list of lists, not str"),
        (["a"], 3, "entities: must be a list of lists, not int"),
    ],
)
def test_entities(kind, items, entities, complaint):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.extract(MODEL, items, entities=entities), InputError, complaint)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"threshold": [0.5]}, "threshold: must be a string, a number, true or false; got list"),
        ({"threshold": {"a": object()}}, "label_thresholds: cannot be converted to JSON"),
        ({"label_descriptions": ["a"]}, "label_descriptions: must be a string"),
        ({"output_schema": {"a": {1}}}, "output_schema: cannot be converted to JSON"),
        ({"options": {"label_thresholds": {"a": object()}}}, "label_thresholds: cannot be converted to JSON"),
    ],
)
def test_options_of_extract(kind, options, complaint):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.extract(MODEL, "a", ["a"], **options), InputError, complaint)


def test_an_unknown_argument_is_refused(kind):
    with (
        kind(NOBODY) as client,
        pytest.raises(TypeError, match=r"extract\(\) takes no label; pass model parameters in"),
    ):
        client.extract(MODEL, "a", label=["a"])


@pytest.mark.parametrize("model", [None, "", b"a", 3])
def test_model_names(kind, model):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.encode(model, "a"), InputError, "model: must be a name such as org/name")
        raises_exactly(lambda: client.score(model, "a", ["b"]), InputError, "model: must be a name such as org/name")
        raises_exactly(lambda: client.extract(model, "a", ["b"]), InputError, "model: must be a name such as org/name")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([("dimensions", 3)], "options: must be a mapping, not list"),
        ({"dimensions": [3]}, "dimensions: must be a string, a number, true or false; got list"),
        ({"dimensions": None}, "dimensions: must be a string, a number"),
        ({"dimensions": 2**63}, "dimensions: must fit into 64 bits"),
        ({"timeout": 3}, "options.timeout: is reserved by Triton; pass timeout=seconds"),
        ({3: 3}, "options: names must be strings"),
    ],
)
def test_options(kind, options, complaint):
    with kind(NOBODY) as client:
        raises_exactly(lambda: client.encode(MODEL, "a", options=options), InputError, complaint)


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 0, -1, 1e300, 10**400, "5", True])
def test_timeouts(kind, timeout):
    raises_exactly(
        lambda: kind(NOBODY, timeout=timeout), InputError, "timeout: must be above 0 and at most 86400 seconds"
    )
    with kind(NOBODY) as client:
        raises_exactly(
            lambda: client.encode(MODEL, "a", timeout=timeout),
            InputError,
            "timeout: must be above 0 and at most 86400 seconds",
        )


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("https://host", "has no port"),
        ("ftp://host:8000", "has the scheme 'ftp'"),
        ("http://host", "has no port; Triton's default ports are 8000 for HTTP and 8001 for gRPC"),
        ("host", "has no port"),
        ("", "has no host"),
        ("http://:8000", "has no host"),
        ("http://ho st:8000", "has no host"),
        ("http://host:99999", "cannot be read"),
        ("http://[::1:8000", "cannot be read"),
        ("http://host:8000?key=1", "has a query or a fragment"),
        ("grpc://host:8001/path", "has the path '/path', which gRPC does not allow"),
        ("host:8001/path", "has the path '/path', which gRPC does not allow"),
        (None, "must be a string, not NoneType"),
        (8000, "must be a string, not int"),
    ],
)
def test_urls(kind, url, complaint):
    raises_exactly(lambda: kind(url), InputError, f"^url: .*{complaint}.*; give http://host:port, grpc://host:port")


def test_a_password_is_not_repeated(kind):
    with pytest.raises(InputError, match="has a user") as caught:
        kind("http://user:secret@host:8000")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("number", [0, -1, 1.5, None])
def test_concurrency(kind, number):
    raises_exactly(lambda: kind(NOBODY, max_concurrency=number), InputError, "max_concurrency: must be 1 or more")


def test_no_items_no_results(kind):
    with kind(NOBODY) as client:
        assert client.encode(MODEL, []) == []
        assert client.extract(MODEL, [], ["a"], []) == []
        assert client.score(MODEL, {"text": "a", "id": "q"}, []) == {"model": MODEL, "scores": [], "query_id": "q"}
