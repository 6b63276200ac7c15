"""Paths that a client may take for a route of the door, and the media type of a response."""

import msgpack
import pytest

from tests.support.doors import door_of, knock, post

MSGPACK, JSON = "application/msgpack", "application/json"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_openais_route_has_its_path_with_and_without_the_version(path):
    door, _ = door_of()
    assert post(door, {"model": "org/m", "input": "a"}, path).json()["data"][0]["embedding"] == [1.0] * 4


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/encode/org/m", "/v1/encode/org/m"),
        ("/v1/v1/embeddings", "/v1/embeddings"),
        ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/v1/embed_sparse", "/embed_sparse"),
    ],
)
def test_the_error_for_a_missing_route_names_the_likely_one(path, meant):
    door, _ = door_of()
    response = post(door, {}, path)
    assert response.status_code == 404
    assert f"did you mean {meant}?" in response.json()["detail"]["message"]


def test_the_error_for_any_other_route_names_the_list_of_routes():
    door, _ = door_of()
    assert "/docs" in post(door, {}, "/v1/no/such/route").json()["detail"]["message"]


@pytest.mark.parametrize(
    ("sent", "accept", "expected"),
    [
        *[(sent, accept, sent) for sent in (JSON, MSGPACK) for accept in (None, "*/*", "text/html")],
        (MSGPACK, JSON, JSON),
        ("application/x-msgpack", "application/x-msgpack", MSGPACK),
    ],
)
def test_a_response_has_the_type_of_the_request_unless_the_client_names_one(sent, accept, expected):
    door, _ = door_of()
    body = {"items": [{"text": "a"}]}
    headers = {"Content-Type": sent, **({"Accept": accept} if accept else {})}

    async def act(client):
        del client.headers["Accept"]
        content = b'{"items": ["a"]}' if sent == JSON else msgpack.packb(body)
        return await client.post("/v1/encode/org/m", content=content, headers=headers)

    response = knock(door, act)
    assert (response.status_code, response.headers["Content-Type"]) == (200, expected)
