"""Calls of a server's HTTP API as SIE defines it, in msgpack: a reference server, or the door of this package."""

from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote

import httpx

from sie_triton.doors.body_codec import MSGPACK, read_msgpack, write_msgpack
from sie_triton.doors.failures import Failure
from sie_triton.errors import SIEError, Unreachable

# Statuses of a server that loads the model, or starts a machine for it.
LOADING = (202, 503, 504)


class HttpApi:
    """Thread-safe client of one model. `timeout` in seconds covers a call, with waiting for the model."""

    def __init__(self, url: str, model: str, timeout: float, max_answer_bytes: int = 256 << 20) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._url, self._model, self._timeout = url.rstrip("/"), model, timeout
        headers = {"Content-Type": MSGPACK, "Accept": MSGPACK}
        self._client = httpx.Client(timeout=timeout, headers=headers, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def encode(self, texts: Sequence[str], output_type: str, *, is_query: bool) -> list[Any]:
        """Return an object for each text: `values`, of sparse vectors `indices` too."""
        params = {"output_types": [output_type], "options": {"is_query": is_query}}
        answer = self._post("encode", {"items": [{"text": text} for text in texts], "params": params})
        items = _field(answer, "items")
        if len(items) != len(texts):
            raise SIEError(f"{self._url}: returned {len(items)} results for {len(texts)} texts")
        return [_field(item, output_type) for item in items]

    def score(self, query: str, texts: Sequence[str]) -> dict[str, float]:
        """Return the score of each text by its position, as a string."""
        items = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
        answer = self._post("score", {"query": {"text": query}, "items": items})
        return {_field(entry, "item_id"): _field(entry, "score") for entry in _field(answer, "scores")}

    def _post(self, verb: str, body: Mapping[str, Any]) -> Any:
        path, content = f"/v1/{verb}/{quote(self._model)}", write_msgpack(body)
        deadline = monotonic() + self._timeout
        status, answer, after_s = self._send(path, content)
        while status in LOADING and monotonic() + after_s < deadline:
            sleep(after_s)
            status, answer, after_s = self._send(path, content)
        if status != 200:
            raise SIEError(f"{self._url}{path}: status {status}: {answer[:500].decode(errors='replace')}")
        try:
            return read_msgpack(answer)
        except Failure as exc:
            raise SIEError(f"{self._url}{path}: the answer {exc.message}; is this SIE's HTTP API?") from exc

    def _send(self, path: str, content: bytes) -> tuple[int, bytes, float]:
        """Return status, body and the seconds after which to ask again."""
        found = bytearray()
        try:
            with self._client.stream("POST", self._url + path, content=content) as response:
                for chunk in response.iter_bytes():
                    found += chunk
                    if len(found) > (most := self._max_answer_bytes):
                        raise SIEError(f"{self._url}{path}: the answer has more than {most} bytes")
        except httpx.HTTPError as exc:
            raise Unreachable(f"{self._url}: no server of SIE's HTTP API answers ({exc})") from exc
        after = response.headers.get("Retry-After", "")
        return response.status_code, bytes(found), float(after) if after.isdecimal() else 5.0


def _field(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping) or value.get(name) is None:
        raise SIEError(f"the reference server's answer has no {name}; is this SIE's HTTP API?")
    return value[name]
