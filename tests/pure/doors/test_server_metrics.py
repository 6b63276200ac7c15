"""Metrics of a server's parts, read for a door or a sidecar: those that can be had, within limits."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import Request

import pytest

from benchmarks.ports import free_ports
from sie_triton.cluster.sidecar.server import LocalServer
from sie_triton.doors.server_metrics import read_parts
from tests.support.http_stub import NO_HEADERS, Reply, answering


class Part:
    """A part that answers with `text`; `num_most` is the number of its requests at a time."""

    def __init__(self) -> None:
        self.text, self.num_most, self._num, self._lock = b"a_metric 1\n", 0, 0, threading.Lock()

    def answer(self, _: object) -> Reply:
        for number in (1, -1):
            with self._lock:
                self._num += number
                self.num_most = max(self.num_most, self._num)
            time.sleep(0.002)
        return 200, self.text, NO_HEADERS


@pytest.fixture
def part() -> Iterator[Part]:
    part = Part()
    with answering(part.answer) as port:
        part.request = Request(f"http://127.0.0.1:{port}/metrics")
        yield part


def test_parts_that_do_not_answer_are_left_out_and_named(part):
    away = Request(f"http://127.0.0.1:{free_ports(1)[0]}/metrics")
    text = asyncio.run(read_parts({"triton": part.request, "controller": away}))
    assert text.endswith(b'sie_up{part="triton"} 1\nsie_up{part="controller"} 0\na_metric 1\n')


@pytest.mark.parametrize(("size", "is_up"), [(100, True), (101, False)])
def test_a_part_that_answers_too_much_is_left_out(part, size, is_up):
    part.text = b"#" * size
    text = asyncio.run(read_parts({"triton": part.request}, max_bytes=100))
    assert f'sie_up{{part="triton"}} {int(is_up)}\n'.encode() in text
    assert (b"###" in text) == is_up


def test_scrapers_of_a_sidecar_take_turns(part):
    double: Any = None
    server = LocalServer(double, double, double, double, lambda: {"triton": part.request})

    async def scrape(read: Callable[[], Any]) -> list[bytes]:
        return await asyncio.gather(*(read() for _ in range(20)))

    texts = asyncio.run(scrape(server.metrics))
    assert all(text.endswith(b"a_metric 1\n") for text in texts)
    assert part.num_most == 1
