"""Memory of the requests at a sidecar: who gets it, in which order, and what becomes of a request without."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Answer, Work
from sie_triton.cluster.sidecar import memory as module
from sie_triton.cluster.sidecar.memory import Memory
from sie_triton.errors import BusyError
from sie_triton.models.weights.object_store import StoreError
from tests.support.joined import request
from tests.support.joiners import FakeTriton, all_ran, in_loop
from tests.support.queues import Queue, delivered, runner_of


def memory(max_bytes: int = 100, max_alone: int = 1000) -> Memory:
    return Memory(max_bytes, max_alone, lambda: None)


def test_bytes_are_taken_in_turn():
    """A small share does not pass a larger one that waits, which would never get its bytes."""
    of_requests = memory()
    of_requests.take("running", 50)
    assert not of_requests.take_in_turn("large", 60)
    assert not of_requests.take_in_turn("small", 10)
    of_requests.release("running")
    assert not of_requests.take_in_turn("small", 10)
    assert of_requests.take_in_turn("large", 60)
    assert of_requests.take_in_turn("small", 10)


def test_there_is_no_room_for_small_messages_while_a_large_one_waits():
    """They would take each share that is given back, and the large one would wait for ever."""
    calls: list[bool] = []
    of_requests = Memory(100, 1000, lambda: calls.append(of_requests.has_room))
    of_requests.take("running", 50)
    assert of_requests.has_room
    assert not of_requests.take_in_turn("large", 60)
    assert not of_requests.has_room
    of_requests.release("running")
    assert calls == [False]  # only the large one may take it
    assert of_requests.take_in_turn("large", 60)
    assert of_requests.has_room
    assert calls == [False, True]


def test_a_request_larger_than_the_memory_has_its_turn_once_little_else_is_there():
    of_requests = memory()
    of_requests.take("half", 50)
    of_requests.take("quarter", 25)
    assert not of_requests.take_in_turn("large", 500)
    of_requests.release("half")
    assert of_requests.take_in_turn("large", 500)
    assert of_requests.is_spent
    assert not of_requests.take_in_turn("other", 500)


def test_those_in_line_hear_of_every_share_that_is_released():
    calls = []
    of_requests = Memory(100, 1000, lambda: calls.append(1))
    of_requests.take("a", 60)
    of_requests.take("b", 10)
    of_requests.release("b")
    assert calls == []  # there was room before
    of_requests.take_in_turn("large", 60)
    of_requests.take_in_turn("next", 30)
    of_requests.release("a")
    assert len(calls) == 1
    of_requests.take_in_turn("large", 60)
    assert len(calls) == 2  # there may be room for the next, too


@in_loop
async def test_payloads_wait_in_order():
    of_requests, order = memory(), []
    of_requests.take("running", 90)

    async def read(name: str, num_bytes: int) -> None:
        await of_requests.wait_for(name, num_bytes)
        order.append(name)

    tasks = [asyncio.create_task(read(name, num_bytes)) for name, num_bytes in (("a", 60), ("b", 40), ("c", 5))]
    await all_ran()
    assert order == []
    of_requests.release("running")
    await all_ran()
    assert order == ["a", "b"]
    of_requests.release("a")
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]


@in_loop
async def test_few_payloads_wait():
    of_requests = memory()
    of_requests.take("running", 90)
    tasks = [asyncio.create_task(of_requests.wait_for(i, 60)) for i in range(SidecarLimits.max_waiting_payloads)]
    await all_ran()
    with pytest.raises(BusyError, match="other payloads wait"):
        await of_requests.wait_for("late", 60)
    for task in tasks:
        task.cancel()


MIB = 1024**2


@pytest.mark.parametrize(("limit", "num_bytes"), [(512 * MIB, 64 * MIB), (1 << 40, 256 * MIB)])
def test_requests_take_a_part_of_the_containers_memory(monkeypatch, limit, num_bytes):
    """Each is held several times."""
    monkeypatch.setattr(module, "container_memory", lambda: (0, limit))
    of_requests = Memory.of_machine(lambda: None)
    of_requests.take("a", num_bytes - 1)
    assert not of_requests.is_spent
    of_requests.take("b", 1)
    assert of_requests.is_spent


BODY = request(b"a" * 1000).SerializeToString()


class Store:
    """Payload store with one payload, which counts its reads."""

    def __init__(self, body: bytes) -> None:
        self.body, self.num_read = body, 0

    async def size(self, path: str) -> int:
        return len(self.body)

    async def get(self, path: str, max_bytes: int) -> bytes:
        if len(self.body) > max_bytes:
            raise StoreError("larger than it said")
        self.num_read += 1
        return self.body


class Sidecar:
    """A runner whose requests may have so many bytes, before a Triton that answers when the test says so."""

    def __init__(
        self,
        directory,
        max_bytes: int,
        store: Store | None = None,
        max_alone: int = 1 << 30,
        payload_wait_s: float = 5.0,
    ) -> None:
        self.queue, self.triton = Queue(), FakeTriton()
        of_calls = {"max_concurrent_batches": 100, "batcher_max_batch_requests": 1}
        self.runner = runner_of(self.queue, self.triton, directory, **of_calls)
        self.runner.payloads = store  # type: ignore[assignment]
        self.num_freed = 0
        self.runner.memory = Memory(max_bytes, max_alone, self._freed, SidecarLimits(payload_wait_s=payload_wait_s))
        self.runner.is_able = True
        self._num = 0

    def _freed(self) -> None:
        self.num_freed += 1

    def start(
        self, body: bytes = BODY, num_deliveries: int = 1, left_s: float = 600, **more: Any
    ) -> "asyncio.Task[None]":
        self._num += 1
        data = Work("g", self._num, time.time() + left_s, "org__m", **more).packed(b"" if more else body)
        self.message = delivered(data, num_deliveries, self._num)
        return self.runner.start(self.message, "p")

    @property
    def returned(self) -> list[bytes]:
        return self.queue.of(b"-NAK")

    @property
    def answers(self) -> list[Answer]:
        return self.queue.answers


@in_loop
async def test_there_is_no_room_while_the_memory_is_spent(tmp_path):
    sidecar = Sidecar(tmp_path, 2 * len(BODY))
    places = sidecar.runner.room
    tasks = [sidecar.start()]
    await all_ran()
    assert sidecar.runner.room == places - 1
    tasks.append(sidecar.start())
    await all_ran()
    assert sidecar.runner.room == 0
    sidecar.triton.calls[0].answer()
    await tasks[0]
    assert sidecar.runner.room == places - 1
    assert sidecar.num_freed == 1
    sidecar.triton.calls[1].answer()
    await tasks[1]


@in_loop
async def test_what_comes_while_the_memory_is_spent_goes_back_after_a_pause(tmp_path):
    """It was asked for before. The pause grows, as with a busy Triton."""
    sidecar = Sidecar(tmp_path, 1)
    running = sidecar.start()
    await all_ran()
    for num_deliveries, pause_ms in ((1, 200), (2, 400), (10, 3200)):
        await sidecar.start(num_deliveries=num_deliveries)
        assert sidecar.returned[-1] == b'-NAK {"delay": %d}' % (pause_ms * 10**6)
    assert len(sidecar.triton.calls) == 1
    sidecar.triton.calls[0].answer()
    await running
    assert [each.status for each in sidecar.answers] == [0]
    again = sidecar.start()
    await all_ran()
    sidecar.triton.calls[1].answer()
    await again
    assert len(sidecar.answers) == 2


@in_loop
async def test_a_late_request_is_dropped_and_not_given_back(tmp_path):
    """It would come again and again, without a pause, until there is memory."""
    sidecar = Sidecar(tmp_path, 1)
    heartbeat = SimpleNamespace(subject="sie.gateway.g", data=b"%.3f" % time.time())
    await sidecar.runner.gateways.hear_gateway(heartbeat)  # type: ignore[arg-type]
    running = sidecar.start()
    await all_ran()
    await sidecar.start(left_s=-1)
    assert sidecar.queue.published == [(sidecar.message.reply, b"")]
    sidecar.triton.calls[0].answer()
    await running


@in_loop
async def test_a_message_is_not_kept_beside_its_request(tmp_path):
    """The subscription of each model keeps its latest message."""
    sidecar = Sidecar(tmp_path, 1 << 20)
    running = sidecar.start()
    await all_ran()
    assert sidecar.message.data == b""
    sidecar.triton.calls[0].answer()
    await running


@in_loop
async def test_a_payload_is_not_read_before_there_is_memory_for_it(tmp_path):
    store = Store(BODY)
    sidecar = Sidecar(tmp_path, 2 * len(BODY) - 1, store)
    small = sidecar.start()
    large = sidecar.start(payload="payloads/1/g.2")
    await all_ran()
    assert store.num_read == 0
    sidecar.triton.calls[0].answer()
    await small
    await all_ran()
    assert store.num_read == 1
    assert sidecar.triton.calls[1].texts == [b"a" * 1000]
    sidecar.triton.calls[1].answer()
    await large
    assert [each.status for each in sidecar.answers] == [0, 0]


@in_loop
async def test_a_payload_without_memory_goes_back_to_the_queue(tmp_path):
    store = Store(BODY)
    sidecar = Sidecar(tmp_path, 2 * len(BODY) - 1, store, payload_wait_s=0)
    small = sidecar.start()
    await all_ran()
    await sidecar.start(payload="payloads/1/g.2")
    assert (store.num_read, sidecar.returned) == (0, [b'-NAK {"delay": 200000000}'])
    sidecar.triton.calls[0].answer()
    await small
    last = sidecar.start(payload="payloads/1/g.2")
    await all_ran()
    sidecar.triton.calls[1].answer()
    await last
    assert [each.status for each in sidecar.answers] == [0, 0]


class AwayStore(Store):
    async def size(self, path: str) -> int:
        raise StoreError("away")


class EmptyStore(Store):
    async def size(self, path: str) -> None:  # type: ignore[override]
        return None


@pytest.mark.parametrize(
    ("store", "receipt"),
    [(None, b'-NAK {"delay": 500000000}'), (AwayStore(BODY), b'-NAK {"delay": 500000000}'), (EmptyStore(BODY), b"")],
    ids=["no store", "away", "removed by its gateway"],
)
@in_loop
async def test_a_payload_that_cannot_be_read_goes_back_unless_nobody_waits_for_it(tmp_path, store, receipt):
    sidecar = Sidecar(tmp_path, 1 << 20, store)
    await sidecar.start(payload="payloads/1/g.1")
    assert sidecar.queue.published == [(sidecar.message.reply, receipt)]


@in_loop
async def test_a_payload_that_no_memory_holds_is_answered(tmp_path):
    """Each sidecar would be killed that reads it."""
    store = Store(BODY)
    sidecar = Sidecar(tmp_path, 1 << 20, store, max_alone=len(BODY) - 1)
    await sidecar.start(payload="payloads/1/g.1")
    (answer,) = sidecar.answers
    assert (answer.status, store.num_read) == (3, 0)
    assert "send fewer or smaller items" in answer.text
