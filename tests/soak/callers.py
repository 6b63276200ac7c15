"""Faults of clients: what they send, hold open, give up, or have computed for ever."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import httpx
import numpy as np
import pytest

from sie_triton import SIEClient
from sie_triton.errors import BusyError, ModelError
from tests.soak.targets import MODELS, Target

OVERSIZED = 70_000_000
NUM_HALF_OPEN = 100

# Threads and requests of a flood.
FLOOD_THREADS, FLOOD_REQUESTS = 48, 600

ROUTE = f"/v1/encode/{MODELS.encoders[0]}"

# Text of the token that `in_processes` waits for.
ENDLESS = "hello"


def address(target: Target) -> tuple[str, int]:
    host, _, port = target.http.removeprefix("http://").partition(":")
    return host, int(port)


@contextmanager
def half_open(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """Connections that send half a request, and nothing more."""
    with ExitStack() as stack:
        for _ in range(NUM_HALF_OPEN):
            connection = stack.enter_context(socket.create_connection(address(target)))
            connection.send(f"POST {ROUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{{".encode())
        yield


@contextmanager
def slow_reader(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """A client that asks for much and reads nothing of it."""
    body = json.dumps({"items": [{"text": "a"}] * 2000}).encode()
    head = f"POST {ROUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(address(target)) as connection:
        connection.sendall(head.encode() + body)
        yield


@contextmanager
def oversized(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """Bodies beyond the limit: refused."""
    with suppress(httpx.HTTPError):  # the connection may be closed before all is sent
        answer = httpx.post(f"{target.http}{ROUTE}", content=bytes(OVERSIZED), timeout=60)
        assert answer.status_code == 413, answer.text
    yield


@contextmanager
def cancelled(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """Clients that hang up soon after they have asked."""
    body = {"items": [{"text": "word " * 50}] * 200}
    for i in range(20):
        with suppress(httpx.HTTPError):
            httpx.post(f"{target.http}/v1/encode/{MODELS.encoders[i % 3]}", json=body, timeout=0.02 * (1 + i))
    yield


@contextmanager
def flood(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """More requests at once than the service takes: each is answered, or refused with a time to retry."""
    limits = httpx.Limits(max_connections=FLOOD_THREADS)
    with httpx.Client(base_url=target.http, timeout=60, limits=limits) as client:

        def post(number: int) -> None:
            answer = client.post(ROUTE, json={"items": [{"text": f"number {number} " + "word " * 20}] * 4})
            assert answer.status_code == 200 or "Retry-After" in answer.headers, answer.text

        with ThreadPoolExecutor(FLOOD_THREADS) as threads:
            list(threads.map(post, range(FLOOD_REQUESTS)))
    yield


@contextmanager
def endless(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """A text whose forward pass never ends: an error at its timeout."""
    expected = pytest.raises((ModelError, BusyError), match=r"longer than|later")
    with closing(SIEClient(target.grpc)) as client, expected:
        client.encode(MODELS.encoders[0], ENDLESS, timeout=30)
    yield
