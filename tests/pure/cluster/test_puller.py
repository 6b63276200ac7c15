"""What pullers ask the queue for: as many messages as there is room for, and large ones one at a time."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from types import SimpleNamespace
from typing import Any

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.sidecar.memory import Memory
from sie_triton.cluster.sidecar.puller import Puller

MIB = 1024**2
FEW, MAX_BATCH, SMALL_BYTES = SidecarLimits.min_batch, SidecarLimits.max_batch, SidecarLimits.small_bytes
TOO_LARGE = {"Status": "409", "Description": "Message Size Exceeds MaxBytes"}


class Queue:
    """Stands for NATS and its client. `asked` are the requests for work, by model."""

    max_payload = 8 * MIB

    def __init__(self) -> None:
        self.asked: dict[str, list[dict[str, int]]] = {}

    def new_inbox(self) -> str:
        return "inbox"

    async def add_consumer(self, *_: object) -> None:
        pass

    async def subscribe(self, subject: str, cb: Any) -> Any:
        return SimpleNamespace(unsubscribe=self.add_consumer)

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        self.asked.setdefault(subject.rpartition(".")[2], []).append(json.loads(data))


class Runner:
    """Stands for a sidecar's runner. `start` returns a future of each message's work."""

    def __init__(self, places: int = 64) -> None:
        self.num_places, self.num_asked = places, 0
        self.memory = Memory(64 * MIB, 1 << 30, lambda: None)
        self.works: list[asyncio.Future[None]] = []

    @property
    def places(self) -> int:
        return self.num_places - sum(not work.done() for work in self.works)

    @property
    def room(self) -> int:
        return 0 if self.memory.is_spent else self.places

    def start(self, message: Any, pool: str) -> "asyncio.Future[None]":
        work = asyncio.get_running_loop().create_future()
        self.memory.take(work, len(message.data))
        work.add_done_callback(self.memory.release)
        self.works.append(work)
        return work


class Sidecar:
    """Pullers of some models at one runner."""

    def __init__(self, *models: str, places: int = 64) -> None:
        self.queue, self.runner = Queue(), Runner(places)
        queue: Any = self.queue
        self.pullers = {model: Puller(queue, queue, "p", model, self.runner) for model in models}  # type: ignore[arg-type]

    async def start(self) -> None:
        for puller in self.pullers.values():
            await puller.start()

    def asked(self, model: str = "m") -> dict[str, int]:
        """Return the latest request for work of a model."""
        return self.queue.asked[model][-1]

    def num_asks(self, model: str = "m") -> int:
        return len(self.queue.asked[model])

    async def come(self, model: str = "m", num_bytes: int = 10, num: int = 1) -> None:
        for _ in range(num):
            await self.pullers[model]._receive(SimpleNamespace(data=bytes(num_bytes), headers=None))  # type: ignore[arg-type]

    async def end(self, model: str = "m", left: int = 0, left_bytes: int = 0, **headers: str) -> None:
        """Have the queue say that a request for work has ended."""
        more = {"Nats-Pending-Messages": str(left), "Nats-Pending-Bytes": str(left_bytes)}
        await self.pullers[model]._receive(SimpleNamespace(data=b"", headers={**more, **headers}))  # type: ignore[arg-type]

    async def has_large(self, model: str = "m") -> None:
        """Have the queue say that the next message of a model is large."""
        await self.end(model, self.asked(model)["batch"], SMALL_BYTES, **TOO_LARGE)

    async def pull_all(self) -> None:
        for puller in self.pullers.values():
            await puller.pull()


def with_sidecar(*models: str, places: int = 64) -> Callable[..., Any]:
    """Run a test in an event loop, with a sidecar that fetches the work of these models."""

    def decorate(test: Callable[[Sidecar], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        @wraps(test)
        def run() -> None:
            async def check() -> None:
                sidecar = Sidecar(*models, places=places)
                await sidecar.start()
                await test(sidecar)
                for puller in sidecar.pullers.values():
                    await puller.close()
                assert sidecar.runner.num_asked == 0

            asyncio.run(check())

        del run.__wrapped__  # pytest would take the sidecar for a fixture
        return run

    return decorate


@with_sidecar("m")
async def test_an_idle_model_asks_for_few_and_a_busy_one_for_more(sidecar):
    assert (sidecar.asked()["batch"], sidecar.asked()["max_bytes"]) == (FEW, SMALL_BYTES)
    await sidecar.come(num=100)
    assert sidecar.runner.num_asked <= MAX_BATCH
    assert len(sidecar.runner.works) + sidecar.runner.num_asked >= 64  # all places


@with_sidecar(*(f"m{i}" for i in range(8)))
async def test_busy_models_share_the_places(sidecar):
    """Each by itself would ask for all of them."""
    for _ in range(7):
        for model in sidecar.pullers:
            await sidecar.come(model)
        assert sidecar.runner.num_asked <= max(sidecar.runner.places, len(sidecar.pullers) * FEW)


@with_sidecar(*(f"m{i}" for i in range(50)))
async def test_idle_models_hold_up_no_busy_one(sidecar):
    """They have asked for more than all places."""
    assert sidecar.runner.num_asked == 50 * FEW > 64
    await sidecar.come("m0", num=60)
    assert len(sidecar.runner.works) == 60
    assert sidecar.pullers["m0"]._num_asked == 4


@with_sidecar("m", places=2)
async def test_without_a_place_nothing_is_asked_for(sidecar):
    await sidecar.come(num=2)
    num_asks = sidecar.num_asks()
    await sidecar.pull_all()
    assert sidecar.num_asks() == num_asks
    assert sidecar.runner.num_asked == 0


@with_sidecar("m")
async def test_without_memory_nothing_is_asked_for(sidecar):
    sidecar.runner.memory.take("other", 64 * MIB)
    await sidecar.come(num=FEW)
    num_asks = sidecar.num_asks()
    await sidecar.pull_all()
    assert sidecar.num_asks() == num_asks
    sidecar.runner.memory.release("other")
    await sidecar.pull_all()
    assert sidecar.num_asks() == num_asks + 1


@with_sidecar("m")
async def test_a_large_message_is_asked_for_alone(sidecar):
    await sidecar.has_large()
    assert (sidecar.asked()["batch"], "max_bytes" in sidecar.asked()) == (1, False)
    await sidecar.come(num_bytes=5 * MIB)
    assert sidecar.asked()["max_bytes"] == SMALL_BYTES


@with_sidecar("m")
async def test_a_message_may_be_small_although_it_exceeds_what_is_left(sidecar):
    await sidecar.come()
    num_asks = sidecar.num_asks()
    await sidecar.end(left=FEW - 1, left_bytes=SMALL_BYTES - 10, **TOO_LARGE)
    assert sidecar.num_asks() == num_asks + 1
    assert sidecar.asked()["max_bytes"] == SMALL_BYTES


@with_sidecar("m")
async def test_all_that_has_been_asked_for_ends_before_a_large_message_is_asked_for(sidecar):
    await sidecar.come(num=3)
    num_asks = sidecar.num_asks()
    await sidecar.end(left=sidecar.asked()["batch"], left_bytes=SMALL_BYTES, **TOO_LARGE)
    assert sidecar.num_asks() == num_asks
    await sidecar.end(left=sidecar.runner.num_asked, left_bytes=10, **TOO_LARGE)
    assert sidecar.asked()["batch"] == 1


@with_sidecar("m")
async def test_a_large_message_that_another_worker_got_holds_no_memory(sidecar):
    await sidecar.has_large()
    await sidecar.end(left=1, Status="408", Description="Request Timeout")
    assert sidecar.asked()["max_bytes"] == SMALL_BYTES
    assert sidecar.runner.memory.take_in_turn("other", 64 * MIB)


@with_sidecar("m", "n", "o")
async def test_large_messages_come_in_turn(sidecar):
    """A model that has many does not take the memory from one that waits."""
    sidecar.runner.memory.take("other", 50 * MIB)
    for model in sidecar.pullers:
        await sidecar.has_large(model)
    waiting = [model for model in sidecar.pullers if "max_bytes" in sidecar.asked(model)]
    assert waiting == ["n", "o"]  # there is memory for one
    await sidecar.come("m", 5 * MIB)
    await sidecar.has_large("m")
    sidecar.runner.works[-1].set_result(None)
    await asyncio.sleep(0)
    await sidecar.pull_all()
    assert [model for model in sidecar.pullers if "max_bytes" in sidecar.asked(model)] == ["m", "o"]
    await sidecar.come("n", 5 * MIB)


@with_sidecar("m", "n")
async def test_a_model_that_is_given_up_leaves_its_place_in_line(sidecar):
    sidecar.runner.memory.take("other", 60 * MIB)
    await sidecar.has_large("m")
    await sidecar.has_large("n")
    sidecar.pullers["m"].leave()
    sidecar.runner.memory.release("other")
    await sidecar.pull_all()
    assert "max_bytes" not in sidecar.asked("n")


@with_sidecar("m")
async def test_requests_for_work_that_are_lost_with_the_connection_hold_no_memory(sidecar):
    await sidecar.has_large()
    await sidecar.pullers["m"].ask_again()
    assert sidecar.runner.num_asked == 1
    sidecar.runner.memory.release(sidecar.pullers["m"])
    assert sidecar.runner.memory.take_in_turn("other", 64 * MIB)


@with_sidecar("m")
async def test_a_request_for_work_that_has_all_its_messages_is_no_error(sidecar):
    """The queue says so if bytes are left."""
    await sidecar.come(num=FEW)
    before = sidecar.runner.num_asked, sidecar.num_asks()
    await sidecar.end(left=0, left_bytes=1000, Status="409", Description="Batch Completed")
    assert (sidecar.runner.num_asked, sidecar.num_asks()) == before
