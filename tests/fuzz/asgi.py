"""Requests to an ASGI application, and what its responses must be like."""

from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

# Statuses from 500 on that a client can be the cause of: it gave too little time, or asked for too much at once.
ALLOWED = (503, 504)


class Request(NamedTuple):
    """A request as an HTTP server hands it over; `path` is not decoded yet."""

    method: str
    path: str
    headers: dict[str, bytes]
    body: bytes


async def response_of(app: Any, request: Request) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return status, headers and body of the response."""
    parts = [request.body[:7], request.body[7:]]
    messages = [{"type": "http.request", "body": part, "more_body": not i} for i, part in enumerate(parts)]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    raw_path, _, query = request.path.partition("?")
    headers = {"host": b"localhost", **request.headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value) for name, value in headers.items()],
        "state": {},
    }
    await app(scope, receive, send)
    start, *rest = sent
    return start["status"], dict(start["headers"]), b"".join(each.get("body", b"") for each in rest)


def check_response(status: int, headers: dict[bytes, bytes], body: bytes, secrets: tuple[bytes, ...]) -> None:
    """Assert that the response is one that the documents allow, and tells nothing of this machine."""
    assert 200 <= status < 500 or status in ALLOWED, f"status {status}: {body[:300]!r}"
    assert not any(secret in body for secret in secrets), body[:3000]
    if headers.get(b"content-type") == b"application/json" and body:
        orjson.loads(body)
    for value in headers.values():
        assert b"\n" not in value
        assert b"\r" not in value
