"""Retries of the `openai` and `cohere` packages, from a door's responses; Triton is a double."""

import asyncio

import cohere
import httpx
import httpx2
import openai
import pytest

from sie_triton.doors.app import application
from sie_triton.doors.endpoint import Door
from sie_triton.errors import LoadError, ModelLoading
from sie_triton.records.request_limit import too_many
from sie_triton.settings import Settings
from tests.support.doors import FakeBackend

LOADING = ModelLoading("timeout: passed while the model is being loaded (1 of 2 GB)")
FULL = too_many(512)
CORRUPT = LoadError("model.safetensors is cut off", "corrupt").refusal("replace the file")


class Triton(FakeBackend):
    """Backend that raises each of `failures` once, then answers."""

    def __init__(self, *failures):
        super().__init__()
        self.failures, self.num_asked = list(failures), 0

    async def encode(self, *given):
        self._fail()
        return await super().encode(*given)

    async def score(self, *given):
        self._fail()
        return await super().score(*given)

    def _fail(self):
        self.num_asked += 1
        if self.failures:
            raise self.failures.pop(0)


def door_before(triton, **given):
    return application(Door(Settings(**given), triton))


@pytest.fixture
def waits(monkeypatch):
    """Seconds that the packages meant to wait, without having waited."""
    waits = []
    real = asyncio.sleep

    async def sleep(seconds, *result):
        if seconds:
            waits.append(seconds)
        return await real(0, *result)

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr("anyio.sleep", sleep)
    return waits


async def embedded(door, api_key="none", texts=("x",)):
    transport = httpx2.ASGITransport(app=door)
    async with openai.AsyncOpenAI(
        base_url="http://localhost/v1", api_key=api_key, http_client=httpx2.AsyncClient(transport=transport)
    ) as client:
        return await client.embeddings.create(model="org/name", input=[*texts])


async def reranked(door, documents=("a",)):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door)) as transport:
        client = cohere.AsyncClientV2("none", base_url="http://localhost", httpx_client=transport)
        return await client.rerank(model="org/name", query="q", documents=[*documents])


@pytest.mark.parametrize(("failure", "seconds"), [(LOADING, 5), (FULL, 1)], ids=["cold", "full"])
@pytest.mark.parametrize("call", [embedded, reranked], ids=["openai", "cohere"])
def test_clients_retry_passing_errors_when_the_door_says(call, failure, seconds, waits):
    triton = Triton(failure)
    asyncio.run(call(door_before(triton)))
    assert triton.num_asked == 2
    assert waits == [seconds]


def test_openais_client_gets_a_rate_limit_error_from_a_busy_server(waits):
    triton = Triton(*[FULL] * 9)
    with pytest.raises(openai.RateLimitError, match="in progress") as caught:
        asyncio.run(embedded(door_before(triton)))
    assert (caught.value.type, triton.num_asked) == ("rate_limit_error", 3)
    with pytest.raises(cohere.TooManyRequestsError, match="in progress"):
        asyncio.run(reranked(door_before(triton)))


def test_openais_client_does_not_retry_permanent_errors(waits):
    triton = Triton(*[CORRUPT] * 9)
    with pytest.raises(openai.InternalServerError, match="safetensors is cut off") as caught:
        asyncio.run(embedded(door_before(triton)))
    assert (caught.value.status_code, caught.value.code, triton.num_asked) == (502, "model_load_failed", 1)
    assert caught.value.body["permanent"]


def test_openais_client_needs_a_valid_token():
    triton = Triton()
    door = door_before(triton, auth_mode="static", auth_tokens="good,better")
    assert asyncio.run(embedded(door, "better")).data[0].embedding == [1.0] * 4
    with pytest.raises(openai.AuthenticationError, match="bearer token is missing or wrong") as caught:
        asyncio.run(embedded(door, "bad"))
    assert (caught.value.code, triton.num_asked) == ("invalid_api_key", 1)
