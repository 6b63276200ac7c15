"""A real S3 server on loopback (moto), which records the requests and can hold them back or refuse them."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.request import Request, urlopen

import obstore
from moto.server import DomainDispatcherApplication, create_backend_app
from obstore.store import S3Store
from werkzeug.serving import make_server

BUCKET = "weights"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "of-the-test", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    range: str


@dataclass
class Store:
    """The server at `endpoint`. `away`: status 403.

    `silent`: HTTP methods whose requests wait for as long as they stand here.
    """

    endpoint: str = ""
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0
    away: bool = False
    silent: tuple[str, ...] = ()

    url: str = f"s3://{BUCKET}/cache"

    @property
    def environment(self) -> dict[str, str]:
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint}

    def client(self) -> S3Store:
        return S3Store(BUCKET, prefix="cache", endpoint=self.endpoint, client_options={"allow_http": True})

    def names(self) -> list[str]:
        return sorted(each["path"] for page in obstore.list(self.client()) for each in page)

    def read(self, pattern: str) -> bytes:
        return bytes(obstore.get(self.client(), self.name(pattern)).bytes())

    def write(self, name: str, content: bytes) -> None:
        obstore.put(self.client(), name, content)

    def name(self, pattern: str) -> str:
        (found,) = (name for name in self.names() if re.search(pattern, name))
        return found

    def num_asked(self, pattern: str, method: str = "GET") -> int:
        return sum(bool(re.search(pattern, each.path)) and each.method == method for each in self.asked)

    def application(self, inner: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            asked = Asked(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_RANGE", ""))
            self.asked.append(asked)
            while asked.method in self.silent:
                time.sleep(0.05)
            if self.away:
                start("403 Forbidden", [("Content-Length", "0")])
                return [b""]
            reads_blob = asked.method == "GET" and "/blobs/" in asked.path
            chunks = list(inner(environ, start))
            self.sent += sum(map(len, chunks)) if reads_blob else 0
            return chunks

        return answer


@contextmanager
def running() -> Iterator[Store]:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # else a line for each request
    store = Store()
    inner = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, store.application(inner), threaded=True)
    server.daemon_threads = True
    store.endpoint = f"http://127.0.0.1:{server.port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        urlopen(Request(f"{store.endpoint}/moto-api/reset", method="POST")).close()
        urlopen(Request(f"{store.endpoint}/{BUCKET}", method="PUT")).close()
        store.asked.clear()
        yield store
    finally:
        store.silent = ()
        server.shutdown()
        server.server_close()
