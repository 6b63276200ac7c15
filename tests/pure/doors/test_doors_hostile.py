"""Hostile bodies for the routes of the other dialects: each is answered, and none with a fault."""

import asyncio
import random

import httpx
import numpy as np
import orjson
import pytest
import tritonclient.grpc.aio as tritonclient

from sie_triton.client.calls import EncodeCall, ScoreCall
from sie_triton.doors.app import application
from sie_triton.doors.endpoint import Door
from sie_triton.settings import Settings
from tests.pure.doors.test_doors_capable import OTHER, RERANKER
from tests.pure.doors.test_doors_capable import Triton as Models

TIMING = dict.fromkeys(
    ("queue_ms", "preprocess_ms", "batch_wait_ms", "inference_ms", "postprocess_ms", "total_ms", "loading_ms"), 1.0
)

FIELDS = {
    "/v1/embeddings": ("model", "input", "dimensions", "encoding_format", "user"),
    "/v1/rerank": ("model", "query", "documents", "top_n", "return_documents", "rank_fields", "max_chunks_per_doc"),
    "/v2/rerank": ("model", "query", "documents", "top_n", "relevant_spans", "max_tokens_per_doc", "priority"),
    "/embed": ("inputs", "truncate", "normalize", "prompt_name", "truncation_direction"),
    "/embed_sparse": ("inputs", "truncate"),
    "/rerank": ("query", "texts", "raw_scores", "return_text"),
}
USUAL = {"model": "a/other", "input": "x", "inputs": ["x"], "query": "q", "documents": ["a"], "texts": ["a"]}
ODD = ("", "x", "org/name", "a:b:c", "\0", "蔷" * 99, 0, 1, -1, 2**53, 1e300, True, False, None, "timeout", "priority")


class Triton(Models):
    """Makes of each request what is sent to a real one, and answers."""

    async def encode(self, model, items, seconds, parameters):
        assert parameters["output_types"] in ("dense", "sparse")
        call = EncodeCall(tritonclient, model, items, {"options": parameters})
        call.arguments(call.pieces[0])
        none = np.zeros(0, np.float32)
        sparse = {"indices": none, "values": none}
        return [{"dense": none, "sparse": sparse, "token_count": 1, "timing": TIMING} for _ in items]

    async def score(self, model, query, items, seconds, parameters):
        call = ScoreCall(tritonclient, model, query, items, {"options": parameters})
        call.arguments(call.pieces[0])
        scores = [{"item_id": f"item-{i}", "score": 0.5, "rank": i} for i in range(len(items))]
        return {"model": model, "scores": scores, "token_count": 1, "timing": TIMING}


def odd_value(rng, depth=0):
    kind = rng.random()
    if kind < 0.6 or depth > 3:
        return rng.choice(ODD)
    values = [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return values if kind < 0.8 else dict(zip(("text", "mode", "x", ""), values, strict=False))


def odd_body(rng, path):
    body = {name: USUAL[name] for name in FIELDS[path] if name in USUAL}
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice((*FIELDS[path], "output_types", "options", "timeout", "", "é", "triton_x"))
        body[name] = odd_value(rng)
    return orjson.dumps(body) if rng.random() < 0.9 else orjson.dumps(odd_value(rng))


def client_before(triton):
    door = Door(Settings(), triton)
    door.served = triton
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=application(door)), base_url="http://localhost")


async def statuses(bodies):
    async with client_before(Triton(OTHER, RERANKER)) as client:
        return [(await client.post(path, content=body)).status_code for path, body in bodies]


@pytest.mark.parametrize("path", FIELDS)
def test_no_body_makes_a_fault(path):
    rng = random.Random(path)
    bodies = [(path, odd_body(rng, path)) for _ in range(150)]
    bodies += [(path, body) for body in (b"", b"{", b"\xff", b"[" * 9000, b'{"model": "\\ud800"}', b"NaN", b"null")]
    found = asyncio.run(statuses(bodies))
    wrong = 400 if path.startswith("/v") else 422
    assert {wrong} < {*found} <= {200, wrong}
    assert found[-7:] == [wrong] * 7
