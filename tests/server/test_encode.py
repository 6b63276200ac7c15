"""The server against sentence-transformers, through every door a client may use."""

import asyncio
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from sie_triton import AsyncSIEClient, Item, SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.contract.tensors import TIMING_FIELDS
from tests.conftest import MINILM
from tests.support.parity import TO_ITSELF, assert_parity, varied_texts

NAME = triton_name(MINILM)
TEXTS = ["hello world", "", "量子コンピュータ", "a much longer text about rivers " * 20]


def infer_arguments(module, texts, **options):
    array = np.array([text.encode() for text in texts], object)
    text = module.InferInput("text", [len(texts)], "BYTES")
    text.set_data_from_numpy(array)
    return {"model_name": NAME, "inputs": [text], **options}


def post(server, path, document):
    body = json.dumps(document).encode()
    request = urllib.request.Request(f"http://{server.http}/v2/models/{NAME}/{path}", body)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


@pytest.fixture(params=["http", "grpc"])
def client(server, request):
    with SIEClient(f"{request.param}://{getattr(server, request.param)}") as client:
        yield client


@pytest.fixture(scope="module")
def expected(reference):
    return reference(TEXTS)


def test_parity_with_sentence_transformers(server, reference):
    """Texts of 0 to 10,000 words: the same as the library, and every eighth the same alone as in any batch."""
    texts, some = varied_texts(40), slice(None, None, 8)
    few = texts[some]
    with SIEClient(server.grpc) as client:
        bulk = np.stack([r["dense"] for r in client.encode(MINILM, texts)])
        small = [r["dense"] for i in range(0, len(few), 8) for r in client.encode(MINILM, few[i : i + 8])]
        alone = [client.encode(MINILM, text)["dense"] for text in few]
    assert_parity(bulk, reference(texts))
    assert_parity(np.stack(small), np.stack(alone), TO_ITSELF)
    assert_parity(bulk[some], np.stack(alone), TO_ITSELF)
    np.testing.assert_allclose(np.linalg.norm(bulk, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_tritonclient(server, expected, module):
    address = server.http if module is tritonclient.http else server.grpc
    with module.InferenceServerClient(address) as client:
        response = client.infer(**infer_arguments(module, TEXTS))
    assert_parity(response.as_numpy("dense"), expected)
    assert response.as_numpy("token_count").dtype == np.int32
    assert response.as_numpy("token_count")[:2].tolist() == [4, 2]
    assert response.as_numpy("timing_ms").shape == (7,)


@pytest.mark.parametrize("module", [tritonclient.http.aio, tritonclient.grpc.aio], ids=["http", "grpc"])
def test_tritonclient_aio(server, expected, module):
    async def call():
        address = server.http if module is tritonclient.http.aio else server.grpc
        async with module.InferenceServerClient(address) as client:
            arguments = infer_arguments(module, TEXTS)
            return await asyncio.gather(*(client.infer(**arguments) for _ in range(5)))

    for response in asyncio.run(call()):
        assert_parity(response.as_numpy("dense"), expected)


def test_json_infer(server, expected):
    document = {
        "inputs": [{"name": "text", "shape": [len(TEXTS)], "datatype": "BYTES", "data": TEXTS}],
        "outputs": [{"name": "dense"}],
    }
    (output,) = post(server, "infer", document)["outputs"]
    assert output["shape"] == [len(TEXTS), 384]
    assert_parity(np.reshape(output["data"], output["shape"]), expected)


def test_generate(server, expected):
    answer = post(server, "generate", {"text": TEXTS[0], "parameters": {"normalize": True}})
    assert_parity(np.array([answer["dense"]]), expected[:1])


def test_client(client, expected):
    results = client.encode(MINILM, [Item(text=text, id=str(i)) for i, text in enumerate(TEXTS)])
    assert_parity(np.stack([r["dense"] for r in results]), expected)
    assert [r["id"] for r in results] == ["0", "1", "2", "3"]
    assert results[1]["token_count"] == 2
    timing = results[0]["timing"]
    assert list(timing) == [f"{name}_ms" for name in TIMING_FIELDS]
    parts = [value for name, value in timing.items() if name != "total_ms"]
    assert all(value >= 0 for value in parts)
    assert 0 < timing["inference_ms"] < timing["total_ms"]
    assert sum(parts) <= timing["total_ms"]


def test_a_single_item_gives_a_single_result(client, expected):
    for item in (TEXTS[0], Item(text=TEXTS[0]), {"text": TEXTS[0]}):
        assert_parity(client.encode(MINILM, item)["dense"][None], expected[:1])


def test_each_answer_has_its_own_counts(client):
    """Answers share tensors of a few bytes."""
    expected = [("a", (3, False)), ("a b", (4, False)), ("a b c", (5, False)), ("a " * 300, (256, True))] * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: client.encode(MINILM, each[0]), expected))
    assert [(each["token_count"], each.get("truncated", False)) for each in found] == [each for _, each in expected]


def test_client_lists_models(client):
    assert MINILM in client.list_models()
    assert not any(name.endswith("inference") for name in client.list_models())


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_asyncio_client(server, expected, scheme):
    async def call():
        async with AsyncSIEClient(f"{scheme}://{getattr(server, scheme)}") as client:
            assert MINILM in await client.list_models()
            return await asyncio.gather(*(client.encode(MINILM, text) for text in TEXTS))

    assert_parity(np.stack([r["dense"] for r in asyncio.run(call())]), expected)


def test_dimensions_and_normalize(client, expected):
    short = client.encode(MINILM, TEXTS, options={"dimensions": 64})
    cut = np.stack([r["dense"] for r in short])
    assert cut.shape == (len(TEXTS), 64)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)
    assert_parity(cut, expected[:, :64])
    raw = client.encode(MINILM, TEXTS[0], options={"normalize": False})["dense"]
    assert abs(np.linalg.norm(raw) - 1) > 0.1
    assert_parity(raw[None], expected[:1])


def test_instruction_goes_before_the_text(client, expected):
    assert_parity(client.encode(MINILM, "world", instruction="hello ")["dense"][None], expected[:1])


def test_a_long_text_is_encoded_in_chunks(client):
    long, short = client.encode(MINILM, [TEXTS[3], "hi"], options={"chunk_tokens": 64, "chunk_overlap": 16})
    places = [(each["start"], each["end"]) for each in long["chunks"]]
    alone = client.encode(MINILM, [TEXTS[3][start:end] for start, end in places])
    assert_parity(np.stack([r["dense"] for r in long["chunks"]]), np.stack([r["dense"] for r in alone]), TO_ITSELF)
    assert (len(places), places[1][0] < places[0][1], long["token_count"]) == (
        3,
        True,
        sum(r["token_count"] for r in alone),
    )
    assert [(each["start"], each["end"]) for each in short["chunks"]] == [(0, 2)]


def test_a_long_text_is_read_whole_and_pooled_in_chunks(client):
    text, late = TEXTS[3][:600], {"chunk_tokens": 64, "late_chunking": True}
    long, whole = client.encode(MINILM, [text, "hi"], options=late)
    chunked, _ = client.encode(MINILM, [text, "hi"], options={"chunk_tokens": 64})
    places = [[(each["start"], each["end"]) for each in result["chunks"]] for result in (long, chunked)]
    assert places[0] == places[1]
    assert len(places[0]) > 1
    assert long["token_count"] == client.encode(MINILM, text)["token_count"]
    (of_whole,) = whole["chunks"]
    assert_parity(of_whole["dense"][None], client.encode(MINILM, "hi")["dense"][None], TO_ITSELF)


def test_a_bad_item_is_refused(client):
    from sie_triton import InputError

    with pytest.raises(InputError, match=r"items\[0\].text: must be a string"):
        client.encode(MINILM, [{"text": 3}])
    with pytest.raises(TypeError, match="takes no dimensions"):
        client.encode(MINILM, "a", dimensions=3)
