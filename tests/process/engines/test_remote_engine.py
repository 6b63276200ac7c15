"""Requests to a remote server, and the handling of its responses."""

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic_ns

import numpy as np
import pytest

from sie_triton.contract.spec import Endpoint as Where
from sie_triton.contract.spec import Runtime
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.remote import connection
from sie_triton.engines.remote.engine import RemoteEncoder, RemoteEngine, headers
from sie_triton.engines.remote.limits import RemoteLimits
from sie_triton.errors import DeadlinePassed, EndpointAway, EndpointBusy, InputError, LoadError, ModelError
from tests.support.openai_endpoint import Endpoint
from tests.support.stages import spec

ITEMS = [np.array(each, np.int32) for each in ([5, 6], [7], [8, 9, 10])]
KEY = "TEST_ENDPOINT_KEY"


def vectors(items):
    return [[float(sum(item)), float(len(item))] for item in items]


def likely(items, tokens):
    return [[1 / (1 + sum(item)), sum(item) / (1 + sum(item))] for item in items]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(vectors, likely) as endpoint:
        yield endpoint


@pytest.fixture
def engine(endpoint) -> Iterator[RemoteEngine]:
    engine = engine_of(endpoint)
    yield engine
    engine.close()


@pytest.fixture
def encoder(engine) -> RemoteEncoder:
    return engine.encoder()


def engine_of(endpoint: Endpoint, timeout_s: float = 60, **given: str) -> RemoteEngine:
    where = Where(**{"url": endpoint.url, "model": "there", **given})
    return RemoteEngine(spec(endpoint=where, runtime=Runtime(forward_timeout_s=timeout_s)), "cuda:0", Measurements())


def test_token_ids_are_sent_and_vectors_returned_in_order(endpoint, engine, encoder):
    np.testing.assert_array_equal(encoder.vectors(ITEMS, 2, None), [[11, 2], [7, 1], [27, 3]])
    ((path, asked),) = endpoint.asked
    assert path == "/v1/embeddings"
    assert asked == {"model": "there", "input": [[5, 6], [7], [8, 9, 10]], "encoding_format": "float"}
    assert (engine.used_bytes(), encoder.weights_bytes) == (0, 0)


@pytest.mark.parametrize("path", ["/v1/score", "/generative_scoring"])
def test_probabilities_come_from_whichever_path_the_endpoint_has(path):
    with Endpoint(likely=likely, scores=path) as endpoint:
        engine = engine_of(endpoint)
        encoder = engine.encoder()
        for _ in range(2):
            found = encoder.choice_probabilities(
                [np.array([3, 4, 5], np.int32), np.array([3, 4, 6, 7], np.int32)], (1, 2), None
            )
            np.testing.assert_allclose(found, [[1 / 13, 12 / 13], [1 / 21, 20 / 21]], rtol=1e-6)
        engine.close()
        assert [where for where, _ in endpoint.asked].count(path) >= 2
        assert endpoint.asked[-1] == endpoint.asked[-2]  # it is not looked up again
        asked = endpoint.asked[-1][1]
    assert (asked["query"], asked["items"]) == ([3, 4], [[5], [6, 7]])
    assert (asked["label_token_ids"], asked["apply_softmax"]) == ([1, 2], True)


@pytest.mark.parametrize(
    ("trouble", "kind", "said"),
    [
        ("429", EndpointBusy, "answers 429, too many requests; retry in 7 s"),
        ("503", EndpointBusy, "answers 503, the queue is full; retry in 1 s"),
        ("400", InputError, "answers 400, the input is longer than the context"),
        ("401", LoadError, "answers 401, Unauthorized; set .*endpoint.api_key_env"),
        ("404", LoadError, "answers 404, Not Found; check endpoint.url and endpoint.model"),
        ("500", ModelError, "answers 500$"),
        ("redirect", LoadError, "answers 307; redirects are not followed"),
        ("html", ModelError, "the response is not JSON"),
        ("list", ModelError, "not a JSON object"),
        ("huge", ModelError, "the response exceeds 100128 bytes"),
        ("nan", ModelError, "not finite|are not numbers"),
        ("infinite", ModelError, "not finite"),
        ("words", ModelError, "are not numbers"),
        ("number", ModelError, "does not contain vectors"),
        ("empty", ModelError, "the response has 0 items; the request had 1"),
        ("index", ModelError, "indices of the response's items are not 0 to 0"),
        ("banner", ModelError, "the server there does not speak HTTP"),
        ("half", ModelError, "the response was cut off"),
        ("reset", EndpointAway, "the endpoint does not answer .*; retry in 1 s"),
    ],
)
def test_an_invalid_response_is_an_error_and_the_next_request_succeeds(endpoint, encoder, trouble, kind, said):
    endpoint.trouble = trouble
    with pytest.raises(kind, match=f"^{endpoint.url}(/v1/embeddings)?: .*{said}") as found:
        encoder.vectors(ITEMS[:1], 2, None)
    assert type(found.value) is kind
    assert len(str(found.value).splitlines()) == 1
    endpoint.trouble = ""
    assert encoder.vectors(ITEMS[:1], 2, None).tolist() == [[11, 2]]


def test_an_endpoint_outage_is_logged_once_and_ends(endpoint, encoder, caplog):
    encoder.vectors(ITEMS, 2, None)
    endpoint.stop()
    for _ in range(5):
        with pytest.raises(EndpointAway, match=r"the endpoint does not answer \(Connection refused\); retry in 1 s"):
            encoder.vectors(ITEMS, 2, None)
    assert len(caplog.records) == 1
    endpoint.start()
    assert len(encoder.vectors(ITEMS, 2, None)) == 3


def test_an_idle_connection_that_has_ended_is_replaced(endpoint, encoder):
    encoder.vectors(ITEMS, 2, None)
    endpoint.stop()
    endpoint.start()
    assert len(encoder.vectors(ITEMS, 2, None)) == 3


def test_a_connection_timeout_is_reported_as_endpoint_away(endpoint, monkeypatch):
    monkeypatch.setattr(connection, "LIMITS", RemoteLimits(connect_s=0.2))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        port = full.getsockname()[1]
        for _ in range(4):  # no server accepts the connections, and then the queue is full
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        engine = engine_of(endpoint, url=f"http://127.0.0.1:{port}")
        with pytest.raises(
            EndpointAway, match=r"the endpoint does not answer \(no connection within 0\.2 s\); retry in 1 s"
        ):
            engine.encoder().vectors(ITEMS, 2, None)
        engine.close()


def test_a_failed_tls_connection_is_an_error(endpoint):
    engine = engine_of(endpoint, url=endpoint.url.replace("http:", "https:"))
    with pytest.raises(ModelError, match="the TLS connection failed"):
        engine.encoder().vectors(ITEMS, 2, None)
    engine.close()


@pytest.mark.parametrize(("num_troubles", "is_answered"), [(1, True), (2, False)])
def test_a_connection_that_is_cut_is_tried_again_once(endpoint, encoder, num_troubles, is_answered):
    endpoint.trouble, endpoint.num_troubles = "reset", num_troubles
    if is_answered:
        assert len(encoder.vectors(ITEMS, 2, None)) == 3
    else:
        with pytest.raises(EndpointAway, match="the endpoint does not answer"):
            encoder.vectors(ITEMS, 2, None)
    assert len(endpoint.asked) == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("trouble", ["slow", "drip"])
def test_the_timeout_covers_the_whole_response(endpoint, trouble):
    """The whole response must arrive before the timeout, whatever parts arrive earlier."""
    engine = engine_of(endpoint, timeout_s=0.4)
    endpoint.trouble, endpoint.delay_s = ("drip", 0.0) if trouble == "drip" else ("", 100.0)
    with pytest.raises(ModelError, match=r"did not answer within 0\.38 s"):
        engine.encoder().vectors(ITEMS, 2, None)
    engine.close()


@pytest.mark.timeout(60)
def test_no_request_waits_after_its_deadline(endpoint, encoder):
    endpoint.delay_s = 100.0
    for ahead_s in (0.1, -1):
        with pytest.raises(DeadlinePassed, match="timeout: passed before"):
            encoder.vectors(ITEMS, 2, monotonic_ns() + int(ahead_s * 1e9))


def test_concurrent_requests_reuse_their_connections(endpoint, encoder):
    endpoint.delay_s = 0.1
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            list(pool.map(lambda item: encoder.vectors([item], 2, None), [ITEMS[0]] * 4))
    assert endpoint.most_at_once == 4
    assert endpoint.num_connections == 4


def test_a_key_is_read_from_the_environment(endpoint, monkeypatch):
    monkeypatch.setenv(KEY, "secret\n")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    engine = engine_of(endpoint, api_key_env=KEY)
    engine.encoder().vectors(ITEMS, 2, None)
    engine.close()
    assert endpoint.headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(("url", "is_told"), [("http://host:1", True), ("https://host:1", False)])
def test_an_unencrypted_api_key_is_warned_of(monkeypatch, caplog, url, is_told):
    monkeypatch.setenv(KEY, "secret")
    assert headers(Where(url, "m", KEY))["Authorization"] == "Bearer secret"
    assert [f"{url}: the API key is sent unencrypted" in line for line in caplog.messages] == [True] * is_told
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("key", "said"), [(None, "is not set"), (" ", "is not set"), ("a\nb", "does not contain a valid key")]
)
def test_a_missing_or_invalid_api_key_is_refused(monkeypatch, key, said):
    monkeypatch.delenv(KEY, raising=False)
    if key is not None:
        monkeypatch.setenv(KEY, key)
    with pytest.raises(LoadError, match=f"{KEY} {said}.*; set it in the server's environment") as found:
        headers(Where("http://x", "m", KEY))
    assert found.value.reason == "gated"


def reads(endpoint: Endpoint, num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, usage = endpoint.answer, {"prompt_tokens": num_tokens}
    monkeypatch.setattr(endpoint, "answer", lambda *asked: (found := answer(*asked)) and {**found, "usage": usage})


def test_a_warning_is_logged_once_if_the_endpoint_reads_more_tokens(endpoint, encoder, caplog, monkeypatch):
    reads(endpoint, 9, monkeypatch)
    with caplog.at_level(logging.WARNING, "sie_triton"):
        for _ in range(2):
            encoder.vectors(ITEMS, 2, None)
    (record,) = caplog.records
    assert "read 9 tokens, but 6 were sent; its results may differ" in record.getMessage()


def test_a_text_truncated_by_the_endpoint_is_refused(endpoint, encoder, monkeypatch):
    """vLLM silently truncates the end of a prompt that is too long: the end holds the question."""
    reads(endpoint, 5, monkeypatch)
    with pytest.raises(InputError, match=r"read only 5 of 6 tokens; .* max_sequence_length"):
        encoder.vectors(ITEMS, 2, None)
    with pytest.raises(InputError, match="read only 5 of 6 tokens"):
        encoder.choice_probabilities(ITEMS, (1, 2), None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"scores": [[0.5, 0.5]] * 2}, "the response has 2 items; the request had 3"),
        ({"scores": [[0.5]] * 3}, "does not contain probabilities of two tokens"),
        ({"scores": [[1.5, 0.5]] * 3}, "does not contain probabilities"),
        ({"scores": [[[0.5, 0.5]]] * 3}, "does not contain probabilities"),
        ({"scores": [[0.5, 0.5], [0.5], [0.5, 0.5]]}, "differ in size"),
        ({"data": [{"index": i, "score": -3.5} for i in range(3)]}, "does not contain probabilities"),
        ({"data": [{"index": i} for i in range(3)]}, "are not numbers|not finite"),
        ({"data": [{"index": [i], "score": 0.5} for i in range(3)]}, "indices of the response's items are not 0 to 2"),
        ({"data": [{"index": 0, "score": 0.5}] * 3}, "indices of the response's items are not 0 to 2"),
        ({}, "the response has no items"),
    ],
)
def test_invalid_scores_are_refused(endpoint, encoder, monkeypatch, answer, said):
    monkeypatch.setattr(endpoint, "answer", lambda *asked: {"usage": {"prompt_tokens": "?"}, **answer})
    with pytest.raises(ModelError, match=said):
        encoder.choice_probabilities(ITEMS, (1, 2), None)
