"""Forwarding to a stand-in for vLLM, by the `openai` package: a door in this process, an endpoint in another thread."""

import json
from contextlib import contextmanager
from dataclasses import replace

import httpx
import openai
import pytest

from sie_triton.client.failures import not_served
from sie_triton.contract.spec import Runtime
from sie_triton.doors import counts
from sie_triton.doors.served import ServedModels
from sie_triton.engines.remote import forwarding
from sie_triton.models.catalog import load_file
from sie_triton.records.known_file import FORWARDED, write_known
from tests.support.chat_replies import CHAT, COMPLETIONS, RESPONSES
from tests.support.controller import wait_for
from tests.support.doors import door_of, listening
from tests.support.openai_endpoint import Endpoint
from tests.support.stages import spec

MODEL, KEY, TOKEN = "org/chat", "TEST_CHAT_KEY", "client-token"
MESSAGES = [{"role": "user", "content": "roses climb up"}]
WAIT_S = 20


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    with Endpoint() as endpoint:
        yield endpoint
        endpoint.stream.may_go_on.set()


@pytest.fixture
def opened(endpoint, tmp_path):
    """A function that opens a door, which forwards MODEL to the endpoint."""
    path = tmp_path / "chat.yaml"
    path.write_text(endpoint.chat_file(MODEL, api_key_env=KEY))
    write_known(tmp_path, {MODEL: load_file(path).resolve(Runtime()).to_json()}, FORWARDED)

    @contextmanager
    def opened(failure=None, forwards=True, **settings):
        door, backend = door_of(data_dir=tmp_path, auth_mode="token", auth_tokens=TOKEN, **settings)
        backend.failure, backend.is_beside_server = failure, forwards
        with listening(door) as port:
            options = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": TOKEN, "max_retries": 0}
            with openai.OpenAI(**options) as client:
                yield client

    return opened


@pytest.fixture
def client(opened):
    with opened() as client:
        yield client


def ask(client, **more):
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, **more)


def test_a_request_is_passed_on_with_the_key_of_the_model_file(client, endpoint):
    more = {"temperature": 0.5, "tools": [], "extra_body": {"top_k": 7, "unknown": None}}
    found = ask(client, **more, extra_headers={"X-Request-ID": "r-1", "Cookie": "c"})
    assert (found.choices[0].message.content, found.usage.total_tokens, found.model) == ("roses climb up", 5, "there")
    path, asked = endpoint.asked[-1]
    body = {"messages": MESSAGES, "model": "there", "temperature": 0.5, "tools": [], "top_k": 7, "unknown": None}
    assert (path, asked) == (CHAT, body)
    sent = {name.lower(): value for name, value in endpoint.headers.items()}
    assert (sent["authorization"], sent["x-request-id"]) == ("Bearer secret", "r-1")
    assert TOKEN not in str(sent)
    assert sent.keys().isdisjoint({"cookie", "x-stainless-lang"})


def test_completions_and_responses_are_passed_on(client, endpoint):
    assert client.completions.create(model=MODEL, prompt="ships sail").choices[0].text == "ships sail"
    assert client.responses.create(model=MODEL, input="ships sail").output_text == "ships sail"
    streamed = client.completions.create(model=MODEL, prompt="ships sail", stream=True)
    assert [each.choices[0].text for each in streamed] == ["ships ", "sail "]
    events = client.responses.create(model=MODEL, input="ships sail", stream=True)
    assert [each.delta for each in events] == ["ships ", "sail "]
    assert [path for path, _ in endpoint.asked] == [COMPLETIONS, RESPONSES] * 2


def test_a_stream_arrives_piece_by_piece(client, endpoint):
    endpoint.stream.may_go_on.clear()
    pieces = iter(ask(client, stream=True))
    assert next(pieces).choices[0].delta.content == "roses "
    assert not endpoint.stream.has_ended.is_set()
    endpoint.stream.may_go_on.set()
    assert [piece.choices[0].delta.content for piece in pieces] == ["climb ", "up "]
    assert endpoint.stream.has_ended.wait(WAIT_S)


def test_a_client_that_leaves_ends_the_request_at_the_endpoint(opened, endpoint):
    endpoint.stream.may_go_on.clear()
    with opened(max_requests_per_model=1) as client:
        stream = ask(client, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            ask(client)
        assert caught.value.response.headers["Retry-After"] == "1"
        stream.close()
        assert endpoint.stream.was_left.wait(WAIT_S)
        endpoint.stream.may_go_on.set()
        assert ask(client).choices  # its place is free again


def test_a_client_that_leaves_before_the_answer_ends_the_request_too(opened, endpoint):
    endpoint.delay_s = 2 * WAIT_S
    with opened(max_requests_per_model=1) as client:
        with pytest.raises(openai.APITimeoutError):
            ask(client, timeout=0.5)
        endpoint.delay_s = 0.0
        assert ask(client.with_options(max_retries=10)).choices


def test_a_client_that_does_not_read_holds_up_the_endpoint(client, endpoint):
    messages = [{"role": "user", "content": "x" * 100_000}]
    client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2000, stream=True)
    assert endpoint.stream.is_blocked.wait(WAIT_S)
    assert not endpoint.stream.has_ended.is_set()


@pytest.mark.parametrize(
    ("trouble", "status", "retry_after", "said"),
    [
        ("429", 429, "7", "too many requests"),
        ("400", 400, None, "the input is longer than the context"),
        ("503", 503, None, "the queue is full"),
        ("500", 500, None, "answers 500"),
        ("404", 404, None, "Not Found"),
        ("401", 502, None, "endpoint.api_key_env"),
        ("redirect", 502, None, "redirects are not followed"),
        ("html", 500, None, "text/html"),
        ("compressed", 500, None, "is compressed"),
        ("compressed events", 500, None, "is compressed"),
        ("half", 500, None, "cut off"),
        ("reset", 502, "1", "does not answer"),
        ("banner", 500, None, "does not speak HTTP"),
    ],
)
def test_troubles_of_the_endpoint_have_openais_form(client, endpoint, trouble, status, retry_after, said):
    with endpoint.in_trouble(trouble), pytest.raises(openai.APIStatusError) as caught:
        ask(client)
    response = caught.value.response
    assert (response.status_code, response.headers.get("Retry-After")) == (status, retry_after)
    assert said in " ".join(response.json()["error"]["message"].split())
    assert ask(client).choices


def test_an_endpoint_that_is_away_is_a_bad_gateway(client, endpoint):
    endpoint.stop()
    with pytest.raises(openai.InternalServerError) as caught:
        ask(client)
    assert (caught.value.status_code, caught.value.response.headers["Retry-After"]) == (502, "1")


def test_a_stream_that_breaks_ends_with_an_error(client, endpoint):
    before = counted(500)
    with endpoint.in_trouble("half"), pytest.raises(openai.APIError, match="cut off"):
        list(ask(client, stream=True))
    with endpoint.in_trouble("half"):
        body = {"model": MODEL, "messages": MESSAGES, "stream": True}
        lines = httpx.post(f"{client.base_url}chat/completions", json=body, headers=client.auth_headers).text.split(
            "\n"
        )
    assert json.loads([line for line in lines if line][-1].removeprefix("data: "))["error"]["code"] == "inference_error"
    wait_for(lambda: counted(500) == before + 2)


def counted(status):
    """Return how many chat requests this process has counted with that status."""
    samples = (sample for metric in counts.DURATION.collect() for sample in metric.samples)
    of_chat = (each for each in samples if each.name.endswith("_count") and each.labels["route"] == CHAT)
    return sum(each.value for each in of_chat if each.labels["status"] == str(status))


@pytest.mark.parametrize("header", [{}, {"X-Request-Timeout": "0.5"}])
def test_a_silent_endpoint_ends_a_request_with_a_timeout(opened, endpoint, header):
    with opened(door_timeout_s=0.5 if not header else 600) as client:
        endpoint.stream.may_go_on.clear()
        with pytest.raises(openai.APIError, match="timeout"):
            list(ask(client, stream=True, extra_headers=header))
        assert endpoint.stream.was_left.wait(WAIT_S)
        endpoint.delay_s = 2 * WAIT_S
        with pytest.raises(openai.InternalServerError) as caught:
            ask(client, extra_headers=header)
        assert caught.value.status_code == 504
        endpoint.is_over.set()


def test_a_whole_answer_has_a_maximum_size(client, endpoint, monkeypatch):
    monkeypatch.setattr(forwarding, "LIMITS", replace(forwarding.LIMITS, max_forwarded_bytes=1000))
    assert ask(client).choices
    with endpoint.in_trouble("huge"), pytest.raises(openai.InternalServerError, match="exceeds 1000 bytes"):
        ask(client)


def test_a_body_has_the_limits_of_all_routes(opened, endpoint):
    with opened(door_max_body_bytes=1000) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            ask(client, user="x" * 1000)
        assert caught.value.status_code == 413
        with pytest.raises(openai.AuthenticationError):
            ask(client.with_options(api_key="wrong"))
        with pytest.raises(openai.BadRequestError, match="model: must be the name"):
            client.chat.completions.create(model=7, messages=MESSAGES)
    assert not endpoint.asked


def test_a_missing_key_is_named(opened, monkeypatch):
    monkeypatch.delenv(KEY)
    with opened() as client, pytest.raises(openai.InternalServerError, match=KEY) as caught:
        ask(client)
    assert caught.value.status_code == 502


def test_a_forwarded_model_is_listed_and_refused_elsewhere(client):
    (listed,) = client.models.list()
    found = client.models.retrieve(MODEL)
    assert (listed.id, found.id, found.tasks) == (MODEL, MODEL, ["generate"])
    with pytest.raises(openai.NotFoundError, match="no profile other"):
        client.chat.completions.create(model=f"{MODEL}:other", messages=MESSAGES)


def test_each_route_refuses_the_models_of_the_others(opened, monkeypatch):
    async def read(self, name):
        return spec(model=name)

    monkeypatch.setattr(ServedModels, "_spec", read)
    with opened(failure=not_served(MODEL, [])) as client:
        with pytest.raises(openai.BadRequestError, match="org/m does not generate text; its tasks: encode"):
            client.chat.completions.create(model="org/m", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="generates text") as caught:
            client.embeddings.create(model=MODEL, input="roses")
    assert caught.value.param == "model"


def test_a_gateway_forwards_nothing(opened, endpoint):
    with opened(forwards=False) as client:
        assert not client.models.list().data
        with pytest.raises(openai.NotFoundError, match="a gateway forwards no requests"):
            ask(client)
    assert not endpoint.asked
