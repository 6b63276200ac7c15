"""Extract through the whole server, by our clients and Triton's: responses equal the results in process."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio

from benchmarks.texts import texts
from sie_triton import Item, SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.models.inputs.features import num_pieces
from tests.conftest import GLINER
from tests.support.extraction import Extractor
from tests.support.gliners import LABELS

NAME = triton_name(GLINER)
TEXTS = [
    "Ada Lovelace was born in London in 1815.",
    "",
    "naïve 😀 日本語 — größe e-mail_adress; [x]",
    *texts(6, seed=3),
]
OPTIONS = [{}, {"threshold": {"person": 0.999, "日": 1}}, {"multi_label": True}]
PARAMETERS = {"threshold": 0.999, "multi_label": True}


@pytest.fixture(scope="module")
def extractor(server):
    return Extractor("gliner", server.settings.models_dir.parent / "gliner" / "model")


@pytest.fixture(scope="module")
def expected(extractor):
    return extractor(TEXTS, LABELS, **PARAMETERS)


def assert_same(ours, theirs):
    """Check for equal lists of extractions, except for rounding of scores."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert [{**each, "score": 0} for each in one["entities"]] == [{**e, "score": 0} for e in other["entities"]]
        scores = [[each["score"] for each in found["entities"]] for found in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)
        for key in ("relations", "classifications", "objects", "data"):
            assert one[key] == other[key]


def as_parameters(options):
    """Return the options as parameters of a raw request, or for the family itself."""
    written = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
    if isinstance(options.get("threshold"), dict):
        written["label_thresholds"] = written.pop("threshold")
    return written


# --- every client


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "none")
def test_client_results_match_the_extractor(client, extractor, options):
    found = client.extract(GLINER, TEXTS, LABELS, **options)
    expected, usual = extractor(TEXTS, LABELS, **as_parameters(options)), extractor(TEXTS, LABELS)
    assert_same(found, expected)
    assert (expected == usual) == (not options)
    assert sum(len(each["entities"]) for each in found) > 10
    for text, each in zip(TEXTS, found, strict=True):
        assert all(text[entity["start"] : entity["end"]] == entity["text"] for entity in each["entities"])
        assert each["timing"]["total_ms"] > 0


def test_one_item_one_result_with_its_id(client, expected):
    one = client.extract(GLINER, Item(text=TEXTS[0], id="ada"), labels=list(LABELS), **PARAMETERS)
    assert_same([one], expected[:1])
    assert set(one) == {"id", "token_count", "timing", *expected[0]}
    assert one["id"] == "ada"
    (listed,) = client.extract(GLINER, [TEXTS[0]], LABELS, **PARAMETERS)
    assert_same([listed], expected[:1])
    assert client.extract(GLINER, [], LABELS) == []


def arguments(module, given=None):
    """Arguments of tritonclient's infer; `given` overrides inputs and parameters, None leaves one out."""
    given = {"text": [text.encode() for text in TEXTS], "labels": [label.encode() for label in LABELS], **(given or {})}
    inputs = []
    for name in ("text", "labels", "entities"):
        if given.get(name) is not None:
            inputs.append(module.InferInput(name, [len(given[name])], "BYTES"))
            inputs[-1].set_data_from_numpy(np.array(given[name], object))
    return {"model_name": NAME, "inputs": inputs, "parameters": given.get("parameters", PARAMETERS)}


def told(response):
    return [json.loads(each) for each in response.as_numpy("extraction")]


MODULES_AIO = pytest.mark.parametrize("module", [tritonclient.http.aio, tritonclient.grpc.aio], ids=["http", "grpc"])


async def all_answers(server, module, requests):
    """Send `requests` at the same moment; return the responses, and errors as they are."""
    address = server.http if module is tritonclient.http.aio else server.grpc
    async with module.InferenceServerClient(address) as client:
        calls = [client.infer(**arguments(module, given)) for given in requests]
        return await asyncio.gather(*calls, return_exceptions=True)


# --- what a request says


def test_a_profile(client, extractor):
    found = client.extract(GLINER, TEXTS, LABELS, profile="strict")
    assert_same(found, extractor(TEXTS, LABELS, threshold=0.8))
    assert found != client.extract(GLINER, TEXTS, LABELS)


def test_equal_labels_are_one(client, expected):
    assert_same(client.extract(GLINER, TEXTS, [LABELS[0], *LABELS, LABELS[1]], **PARAMETERS), expected)


BAD = [
    ({"labels": None}, f"labels: is empty; send the labels that {GLINER} must look for"),
    ({"labels": [b"person", b" "]}, r"labels\[1\]: is empty; send at least one word"),
    ({"labels": [b"label %d" % i for i in range(1000)]}, r"labels: take \d+ tokens; this model reads at most \d+"),
    ({"labels": [b"%d" % i for i in range(5000)]}, "labels: has 5000 elements; send at most 4096"),
    ({"labels": [b"\xff"]}, r"labels\[0\]: not valid UTF-8"),
    ({"text": None}, "text: missing; it is a required input"),
    ({"entities": [b"[]"] * len(TEXTS)}, "entities: this model does not read entities; leave it out"),
    ({"parameters": {"label_thresholds": "{"}}, "parameter label_thresholds: is not valid JSON"),
    ({"parameters": {"label_thresholds": '{"person": 2}'}}, "label_thresholds: person: must be a number from 0 to 1"),
    ({"parameters": {"label_thresholds": '{"animal": 0.5}'}}, "label_thresholds: 'animal' is not one of the labels"),
    ({"parameters": {"output_schema": "{}"}}, "parameter output_schema: unknown here; allowed are flat_ner, instr"),
]


@MODULES_AIO
def test_bad_requests_get_the_reason_and_their_neighbours_are_answered(server, expected, module):
    """All requests are sent at the same moment, so that they share Triton's batches."""
    good = [None] * 6
    answers = asyncio.run(all_answers(server, module, [*(given for given, _ in BAD), *good]))
    for (_, message), answer in zip(BAD, answers, strict=False):
        assert re.search(message, str(answer))
    for answer in answers[len(BAD) :]:
        assert_same(told(answer), expected)


# --- long texts


def test_a_one_megabyte_text_does_not_block_small_requests(server, extractor, expected):
    """The text is prose, and between its paragraphs single words of thousands of letters, like pictures in mails."""
    document = "\n".join(f"naïve 😀 {paragraph}\n{'x' * 2_000}" for paragraph in texts(480, seed=9))
    assert len(document) > 1_000_000
    labels, options = LABELS[:2], {"threshold": 0.9}
    with SIEClient(server.grpc) as client, SIEClient(server.grpc) as other, ThreadPoolExecutor(1) as pool:
        beside = [other.extract(GLINER, TEXTS[0], LABELS, **PARAMETERS)]
        whole = pool.submit(client.extract, GLINER, document, labels, timeout=60, **options)
        while not whole.done():
            beside.append(other.extract(GLINER, TEXTS[0], LABELS, **PARAMETERS))
    assert len(beside) > 4
    assert_same(beside, expected[:1] * len(beside))
    found = whole.result()["entities"]
    assert all(document[entity["start"] : entity["end"]] == entity["text"] for entity in found)
    assert all(one["end"] <= following["start"] for one, following in pairwise(found))
    assert found[-1]["end"] > len(document) - 2_500
    (beginning,) = extractor([document[:60_000]], labels, **options)
    assert len(before(40_000, beginning["entities"])) > 100
    assert before(40_000, found) == before(40_000, beginning["entities"])


def before(end, entities):
    return [(each["start"], each["end"], each["label"]) for each in entities if each["end"] < end]


def test_the_tokens_of_all_pieces_are_counted(client, extractor):
    several = ["Ada", " ".join(texts(60, seed=4)), "Grace Hopper"]
    features = extractor.features(several, LABELS)
    (first, second, third), lengths = num_pieces(features, 3).tolist(), features["input_ids"].lengths.tolist()
    assert (first, third) == (1, 1)
    assert second > 3
    counts = [each["token_count"] for each in client.extract(GLINER, several, LABELS)]
    assert counts == [lengths[0], sum(lengths[1:-1]), lengths[-1]]
