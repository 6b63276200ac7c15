"""The door with the calls of SIE's own SDK, before a real server."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import httpx
import msgpack
import msgpack_numpy
import numpy as np
import pytest

from sie_triton.client.retry import Deadline
from sie_triton.contract.names import triton_name
from sie_triton.contract.outputs import OUTPUT_DTYPES
from sie_triton.doors.app import PROTOCOL_VERSION
from sie_triton.records.status import records_of
from tests.conftest import BGE_M3, CLAP, CLIP, COLBERT, CROSS_ENCODER, GLINER, MINILM, TINY
from tests.support import pdfs
from tests.support.pictures import pictures
from tests.support.sounds import sound

TEXTS = ["how do vines climb?", "", "schöne Grüße aus Köln"]

# As the SDK sends and accepts.
PACKED = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}


def post(http, path, body, **headers):
    """Post in msgpack, as the SDK does."""
    answer = http.post(path, content=msgpack.packb(body), headers={**PACKED, **headers})
    assert answer.headers["content-type"] == "application/msgpack", answer.text
    return msgpack.unpackb(answer.content, object_hook=msgpack_numpy.decode)


def vector(found):
    return found["values"] if "indices" not in found else (found["indices"], found["values"])


def same(found, expected):
    if isinstance(expected, dict):  # sparse
        return all(same(a, expected[name]) for a, name in zip(found, ("indices", "values"), strict=True))
    return found.dtype == expected.dtype and np.array_equal(found, expected)


CASES = [(MINILM, ["dense"]), (BGE_M3, ["dense", "sparse", "multivector"]), (COLBERT, ["multivector", "muvera"])]


@pytest.mark.parametrize(("model", "types"), CASES, ids=lambda each: str(each))
@pytest.mark.parametrize("dtype", OUTPUT_DTYPES)
def test_vectors_are_those_of_the_client_bit_for_bit(http, ours, model, types, dtype):
    items = [{"text": text, "id": f"t{i}"} for i, text in enumerate(TEXTS)]
    params = {"output_types": types, "output_dtype": dtype, "options": {"is_query": True}}
    expected = ours.encode(model, items, output_types=types, output_dtype=dtype, is_query=True)
    body = {"items": items, "params": params}
    of_msgpack = post(http, f"/v1/encode/{model}", body)
    of_json = http.post(f"/v1/encode/{model}", json=body).json()
    assert of_msgpack["model"] == of_json["model"] == model
    for i, item in enumerate(expected):
        packed, plain = of_msgpack["items"][i], of_json["items"][i]
        assert packed["id"] == plain["id"] == f"t{i}"
        for name in types:
            if "binary" in dtype and name != "sparse":  # as numpy unpacks bits
                item[name] = item[name].view(np.uint8)
            assert same(vector(packed[name]), item[name])
            kind = "float32" if name == "sparse" else dtype
            assert packed[name]["dtype"] == plain[name]["dtype"] == kind
            numbers = item[name]["values"] if name == "sparse" else item[name]
            assert np.array_equal(np.array(plain[name]["values"], numbers.dtype), numbers)


def test_each_output_states_its_dimensions(http):
    item = post(http, f"/v1/encode/{BGE_M3}", {"items": [{"text": "one two"}]})["items"][0]
    assert [*item] == ["dense"]
    every = {"output_types": ["dense", "sparse", "multivector"]}
    item = post(http, f"/v1/encode/{BGE_M3}", {"items": [{"text": "one two"}], "params": every})["items"][0]
    assert item["dense"]["dims"] == 64
    assert item["sparse"]["dims"] == 30522
    assert item["multivector"]["token_dims"] == 32
    assert item["multivector"]["num_tokens"] == len(item["multivector"]["values"]) == 3
    assert "id" not in item
    params = {"output_types": ["multivector", "dense"], "output_dtype": "ubinary", "options": {"dimensions": 61}}
    item = post(http, f"/v1/encode/{BGE_M3}", {"items": ["one"], "params": params})["items"][0]
    assert (item["dense"]["dims"], item["dense"]["values"].shape) == (61, (8,))
    assert (item["multivector"]["token_dims"], item["multivector"]["values"].shape[1]) == (32, 4)


def test_scores_are_those_of_the_client(http, ours):
    items = [{"text": "vines climb"}, {"text": "no"}, {"text": "vines", "id": "mine"}]
    query = {"text": TEXTS[0], "id": "q"}
    expected = ours.score(CROSS_ENCODER, query, items)
    found = post(http, f"/v1/score/{CROSS_ENCODER}", {"query": query, "items": items})
    assert found["scores"] == expected["scores"]
    assert {each["item_id"] for each in found["scores"]} == {"item-0", "item-1", "mine"}
    assert found["query_id"] == "q"
    assert (
        http.post(f"/v1/score/{CROSS_ENCODER}", json={"query": query, "items": items}).json()["scores"]
        == found["scores"]
    )


def test_the_door_extracts_the_same_findings_as_the_client(http, ours):
    text = "Ada Lovelace lived in London."
    params = {"labels": ["person", "city"], "options": {"threshold": 0.1}}
    expected = ours.extract(GLINER, text, ["person", "city"], threshold=0.1)
    found = post(http, f"/v1/extract/{GLINER}", {"items": [{"text": text}, {"text": text, "id": 7}], "params": params})
    assert [item["id"] for item in found["items"]] == ["item-0", 7]
    for name in ("entities", "relations", "classifications", "objects", "data"):
        assert found["items"][0][name] == found["items"][1][name] == expected[name]
    assert expected["entities"]


def test_files_come_as_bytes_or_as_base64(http, ours):
    picture = pictures()[1]
    coded = base64.b64encode(picture).decode()
    expected = ours.encode(CLIP, {"image": picture})["dense"]
    ways = [{"data": coded, "format": "jpeg"}, f"data:image/jpeg;base64,{coded}"]
    plain = http.post(f"/v1/encode/{CLIP}", json={"items": [{"images": [way]} for way in ways]}).json()["items"]
    packed = post(http, f"/v1/encode/{CLIP}", {"items": [{"images": [{"data": picture, "format": "jpeg"}]}]})["items"]
    for item in (*plain, *packed):
        # Two images of one request share a pass, which rounds differently.
        assert np.allclose(np.array(item["dense"]["values"], np.float32), expected, atol=1e-6)


def test_a_pdf_has_a_result_of_each_page(http, ours):
    file = pdfs.pdf_of(pdfs.pages())
    expected = ours.encode(CLIP, {"image": file, "id": "p"})
    body = {"items": [{"images": [{"data": file, "format": "pdf"}], "id": "p"}, "a text"]}
    found = post(http, f"/v1/encode/{CLIP}", body)["items"]
    assert found[0]["id"] == "p"
    assert [page["page"] for page in found[0]["pages"]] == [page["page"] for page in expected["pages"]]
    for page, wanted in zip(found[0]["pages"], expected["pages"], strict=True):
        # Lanes may share the pages of a request, and a pass of other pages rounds differently.
        assert np.allclose(page["dense"]["values"], wanted["dense"], atol=1e-6)
    assert found[1]["dense"]["dims"] == 32


def test_a_sound_may_be_an_array(http, ours):
    samples = sound(0.3)
    array = msgpack.unpackb(msgpack.packb(samples, default=msgpack_numpy.encode))
    found = post(http, f"/v1/encode/{CLAP}", {"items": [{"audio": {"data": array, "sample_rate": 48_000}}]})
    expected = ours.encode(CLAP, {"audio": {"data": samples, "sample_rate": 48_000}})["dense"]
    assert np.array_equal(found["items"][0]["dense"]["values"], expected)


def test_timings_are_in_the_body_and_in_headers(http):
    answer = http.post(f"/v1/encode/{TINY}", json={"items": ["a"]}, headers={"X-Request-ID": "mine"})
    timing = answer.json()["timing"]
    of_the_server = ["queue_ms", "batch_wait_ms", "tokenization_ms", "inference_ms", "postprocessing_ms", "loading_ms"]
    assert list(timing) == ["total_ms", *of_the_server]
    assert timing["total_ms"] > sum(timing[name] for name in of_the_server) > 0
    for name, ms in timing.items():
        header = f"X-{name.removesuffix('_ms').replace('_', '-')}-Time"
        assert float(answer.headers[header]) == pytest.approx(ms, abs=0.006)
    assert answer.headers["X-Trace-ID"] == "mine"
    assert answer.headers["X-SIE-Server-Version"] == PROTOCOL_VERSION
    assert answer.headers["X-SIE-Triton-Version"] == version("sie-triton")


def test_models_are_listed_with_what_they_take_and_give(http):
    listed = http.get("/v1/models", headers=PACKED)
    assert listed.headers["content-type"] == "application/json"
    found = {each["name"]: each for each in listed.json()["models"]}
    assert found[CLIP]["inputs"] == ["text", "image"]
    assert found[BGE_M3] == http.get(f"/v1/models/{BGE_M3}").json()
    assert found[BGE_M3]["outputs"] == ["dense", "sparse", "multivector", "score"]
    assert found[BGE_M3]["dims"] == {"dense": 64, "sparse": 30522, "multivector": 32}
    assert found[BGE_M3]["profiles"].keys() == {"default", "asking", "sparse"}
    assert found[BGE_M3]["profiles"]["default"]["is_default"]
    assert found[MINILM]["max_sequence_length"] == 256
    answer = http.get("/v1/models/no/such")
    assert (answer.status_code, answer.json()["detail"]["code"]) == (404, "MODEL_NOT_FOUND")


def counts(server, field):
    stages = ("preprocess", "inference")
    records = [
        record for stage in stages for record in records_of(server.settings.status_dir, triton_name(MINILM), stage)
    ]
    return sum(record[field] for record in records)


def test_work_for_a_client_that_has_gone_ends(http, server):
    """The work ends before all is computed, and long before the client's deadline of an hour."""
    texts = [f"how do {i} vines climb the old wall? " * 12 for i in range(4000)]
    items, cancelled = counts(server, "num_items"), counts(server, "num_cancelled")
    with pytest.raises(httpx.ReadTimeout):
        http.post(f"/v1/encode/{MINILM}", json={"items": texts}, headers={"X-Request-Timeout": "3600"}, timeout=3.0)
    while counts(server, "num_open"):
        time.sleep(0.1)
    assert counts(server, "num_items") - items < len(texts)
    assert counts(server, "num_cancelled") > cancelled


def test_requests_of_one_text_each_share_calls_of_triton(http, ours):
    """Each gets the vector that it would get alone, and its own id. Rounds go on until some have shared a call."""
    texts = [f"text {i} of those that share calls" for i in range(64)]
    expected = ours.encode(TINY, texts)
    before, num_sent, ends_at = num_inferences(ours), 0, time.monotonic() + 60

    def ask(i: int) -> None:
        body = {"items": [{"text": texts[i], "id": f"t{i}"}]}
        found = post(http, f"/v1/encode/{TINY}", body, **{"X-Request-ID": f"r{i}"})
        (item,) = found["items"]
        assert item["id"] == f"t{i}"
        assert np.allclose(item["dense"]["values"], expected[i]["dense"], atol=1e-5)

    with ThreadPoolExecutor(32) as pool:
        while not num_sent or (num_inferences(ours) - before == num_sent and time.monotonic() < ends_at):
            list(pool.map(ask, range(64)))
            num_sent += 64
    assert num_inferences(ours) - before < num_sent


def num_inferences(ours) -> int:
    statistics = ours._connection.ask("get_inference_statistics", Deadline.after(30), model_name=triton_name(TINY))
    return statistics.model_stats[0].inference_stats.success.count
