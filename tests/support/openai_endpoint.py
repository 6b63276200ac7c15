"""A stand-in for an SGLang or vLLM server: the same API over HTTP, with numbers of a real small model.

It can be away, slow, or wrong in each way that a test wants.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import AutoModel, AutoModelForCausalLM

from tests.conftest import model_file
from tests.support.chat_replies import Stream, events, reply

Vectors = Callable[[Sequence[Sequence[int]]], Any]
Likely = Callable[[Sequence[Sequence[int]], Sequence[int]], Any]

# What a test may want of it: a status and its headers and body, in place of an answer.
TROUBLES: dict[str, tuple[int, dict[str, str], bytes]] = {
    "429": (429, {"Retry-After": "7"}, b'{"error": {"message": "too many requests"}}'),
    "503": (503, {}, b'{"message": "the queue is full"}'),
    "400": (400, {}, b'{"object": "error", "message": "the input is\\nlonger than the context"}'),
    "401": (401, {}, b'{"error": "Unauthorized"}'),
    "404": (404, {}, b'{"detail": "Not Found"}'),
    "500": (500, {}, b"Internal Server Error"),
    "redirect": (307, {"Location": "http://127.0.0.1:9/v1/embeddings"}, b""),
    "html": (200, {"Content-Type": "text/html"}, b"<html>welcome</html>"),
    "compressed": (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"),
    "compressed events": (200, {"Content-Encoding": "gzip", "Content-Type": "text/event-stream"}, b"\x1f\x8b"),
    "list": (200, {}, b"[1, 2]"),
    "huge": (200, {}, b" " * 5_000_000),
    "nan": (200, {}, b'{"data": [{"index": 0, "embedding": [null, 1.0]}]}'),
    "infinite": (200, {}, b'{"data": [{"index": 0, "embedding": [1e300, 1.0]}]}'),
    "words": (200, {}, b'{"data": [{"index": 0, "embedding": ["a", "b"]}]}'),
    "number": (200, {}, b'{"data": [{"index": 0, "embedding": 5}]}'),
    "empty": (200, {}, b'{"data": []}'),
    "index": (200, {}, b'{"data": [{"index": 1, "embedding": [1.0, 2.0]}]}'),
}


class Endpoint:
    """A server on a port of its own, which it keeps while it is stopped.

    `trouble` is a key of TROUBLES, "reset" (the connection is cut), "half" (an answer is), "banner" or "drip", for the
    next `num_troubles` questions; each answer takes `delay_s`. `refuses` makes it answer 400 wherever that token is
    in a question. `asked` are path and content of each question, `headers` those of the last; `most_at_once` were being
    answered.
    """

    def __init__(self, vectors: Vectors | None = None, likely: Likely | None = None, scores: str = "/v1/score") -> None:
        self._vectors, self._likely, self._scores = vectors, likely, scores
        self.trouble, self.num_troubles = "", 10**6
        self.refuses, self.delay_s = -1, 0.0
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: dict[str, str] = {}
        self.num_connections = self.at_once = self.most_at_once = 0
        self.stream = Stream()
        self._port, self._lock, self.is_over = 0, threading.Lock(), threading.Event()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "Endpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.is_over.clear()
        self._server = Server(("127.0.0.1", self._port), Handler)
        self._server.endpoint = self
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @contextmanager
    def in_trouble(self, name: str) -> Iterator[None]:
        self.trouble = name
        try:
            yield
        finally:
            self.trouble = ""

    def model_file(
        self, model: str, directory: Path, family: str, tasks: dict[str, Any], loadtime: Any = None, **where: str
    ) -> str:
        """Return the content of a model file whose default profile names this server; `where`: more about it."""
        content = yaml.safe_load(model_file(model, directory, family, tasks, loadtime=loadtime))
        content["profiles"]["default"]["endpoint"] = {"url": self.url, "model": "there", **where}
        return yaml.safe_dump(content)

    def chat_file(self, model: str, **where: str) -> str:
        """Return the content of a model file for models that this server generates with."""
        endpoint = {"url": self.url, "model": "there", **where}
        return yaml.safe_dump(
            {"sie_id": model, "tasks": {"generate": {}}, "profiles": {"default": {"endpoint": endpoint}}}
        )

    def stop(self) -> None:
        self.is_over.set()  # no answer is held back any longer
        self._server.shutdown()
        self._server.server_close()
        for each in self._server.sockets:
            with suppress(OSError):  # gone already
                each.shutdown(socket.SHUT_RDWR)

    def answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request; None: the route does not exist."""
        if path == "/v1/embeddings" and self._vectors:
            rows = [{"index": i, "embedding": each} for i, each in enumerate(self._vectors(asked["input"]))]
            usage = {"prompt_tokens": sum(map(len, asked["input"]))}
            return {"data": rows[::-1], "usage": usage}
        if path == self._scores and self._likely:
            tokens, items = asked["label_token_ids"], [asked["query"] + item for item in asked["items"]]
            likely, usage = self._likely(items, tokens), {"prompt_tokens": sum(map(len, items))}
            if path == "/v1/score":
                return {"scores": likely, "usage": usage}
            return {"data": [{"index": i, "score": row[0]} for i, row in enumerate(likely)][::-1], "usage": usage}
        return reply(path, asked)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    endpoint: Endpoint

    def __init__(self, *given: Any) -> None:
        self.sockets: list[Any] = []
        super().__init__(*given)

    def process_request(self, request, client_address):
        self.endpoint.num_connections += 1
        self.sockets.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):
        """Ignore clients that disconnect, as some tests do."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self):
        endpoint = self.server.endpoint
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with endpoint._lock:
            endpoint.asked.append((self.path, asked))
            endpoint.headers = dict(self.headers)
            endpoint.at_once += 1
            endpoint.most_at_once = max(endpoint.most_at_once, endpoint.at_once)
        try:
            endpoint.is_over.wait(endpoint.delay_s)
            self.reply(endpoint, asked)
        finally:
            endpoint.at_once -= 1

    def reply(self, endpoint, asked):
        trouble = endpoint.trouble if endpoint.num_troubles > 0 else ""
        endpoint.num_troubles -= 1
        items = asked["input"] if isinstance(asked.get("input"), list) else [[0]]
        if endpoint.refuses in np.concatenate([np.array(item) for item in items]):
            trouble = "400"
        if trouble == "banner":
            self.wfile.write(b"SSH-2.0-other\r\n")
            self.close_connection = True
            return
        if trouble == "reset":
            self.connection.close()
            self.close_connection = True
            return
        if trouble in TROUBLES:
            self.send(*TROUBLES[trouble])
            return
        if asked.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            endpoint.stream.send(self.connection, events(self.path, asked), is_cut=trouble == "half")
            self.close_connection = True
            return
        answer = endpoint.answer(self.path, asked)
        status, body = (200, json.dumps(answer).encode()) if answer else (404, b'{"detail": "Not Found"}')
        if trouble == "half":
            self.send(status, {}, body, len(body) + 100)
            self.close_connection = True
        elif trouble == "drip":
            self.send(status, {}, b"", len(body))
            for letter in body:
                self.wfile.write(bytes([letter]))
                time.sleep(0.05)
        else:
            self.send(status, {}, body)

    def send(self, status, headers, body, length=None):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def last_states(directory: Path) -> Vectors:
    """Return vectors as such servers pool a decoder: the last token's state, of length 1."""
    model = AutoModel.from_pretrained(directory).eval()

    @torch.inference_mode()
    def vectors(items):
        states = [model(torch.tensor([item])).last_hidden_state[0, -1] for item in items]
        return [torch.nn.functional.normalize(state, dim=0).tolist() for state in states]

    return vectors


def next_tokens(directory: Path) -> Likely:
    """Return the probabilities of the given next tokens, normalised among these alone."""
    model = AutoModelForCausalLM.from_pretrained(directory).eval()

    @torch.inference_mode()
    def likely(items, tokens):
        logits = [model(torch.tensor([item])).logits[0, -1, tokens] for item in items]
        return [torch.softmax(each, -1).tolist() for each in logits]

    return likely
