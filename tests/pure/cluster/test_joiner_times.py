"""Times of shared calls: deadlines, the length of a call, and the wait for others to come."""

import asyncio
from collections.abc import Callable

import pytest

from sie_triton.cluster.sidecar.joiner import Sent
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.doors import shared_calls
from tests.support.joined import request
from tests.support.joiners import DEADLINE_EXCEEDED, NOW, FakeTriton, all_ran, joiner_of, with_clients


@pytest.fixture
def frozen_time(monkeypatch) -> Callable[[float], None]:
    """Clock that stands still until the test moves it on."""
    now = [NOW]
    monkeypatch.setattr(shared_calls, "monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


@with_clients()
async def test_a_joined_call_has_the_time_of_its_most_patient_request(clients, frozen_time):
    [running] = await clients.occupy()
    tasks = [clients.send(b"a", seconds=seconds) for seconds in (12.0, 30.0, 20.0)]
    await clients.waiting(*tasks)
    frozen_time(2.0)
    running.answer()
    call = await clients.triton.next()
    assert call.seconds == 28.0
    call.answer()
    assert [response.waited_s for response in await asyncio.gather(*tasks)] == [2.0] * 3


@with_clients()
async def test_a_repeated_request_has_its_own_time(clients, frozen_time):
    [running] = await clients.occupy()
    tasks = [clients.send(b"a", seconds=30.0), clients.send(b"bad", seconds=12.0)]
    await clients.waiting(*tasks)
    frozen_time(2.0)
    running.answer()
    (await clients.triton.next()).answer()
    calls = [await clients.triton.next() for _ in tasks]
    assert [call.seconds for call in calls] == [28.0, 10.0]
    for call in calls:
        call.answer()
    await asyncio.gather(*tasks)


@with_clients()
async def test_a_request_whose_time_has_passed_is_not_called(clients):
    [running] = await clients.occupy()
    late, in_time = clients.send(b"a", seconds=0.01), clients.send(b"b")
    assert (await late).status == DEADLINE_EXCEEDED
    running.answer()
    call = await clients.triton.next()
    assert call.texts == [b"b"]
    call.answer()
    assert (await in_time).is_ok


@with_clients()
async def test_a_request_whose_time_passes_during_a_joined_call_costs_the_others_nothing(clients):
    [running] = await clients.occupy()
    late, in_time = clients.send(b"a", seconds=0.2), clients.send(b"b")
    await clients.waiting(late, in_time)
    running.answer()
    call = await clients.triton.next()
    assert call.texts == [b"a", b"b"]
    assert (await late).status == DEADLINE_EXCEEDED
    call.answer()
    assert (await in_time).is_ok
    await clients.triton.none()


def test_a_joined_call_has_as_many_requests_as_its_time_allows(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("sie_triton.doors.shared_calls.monotonic", lambda: now[0])

    async def check() -> list[int]:
        triton = FakeTriton()
        joiner, message = joiner_of(triton, call_s=lambda: 1.0), request(b"a").SerializeToString()
        tasks = [asyncio.create_task(joiner.call(("m", ""), Sent(message), 1000)) for _ in range(30)]
        await all_ran()
        sizes = []
        while not all(task.done() for task in tasks):
            sizes.append(len(triton.calls[-1].texts))
            now[0] += 0.2 * sizes[-1]  # 0.2 s for each request
            triton.calls[-1].answer()
            await all_ran()
        return sizes

    sizes = asyncio.run(check())
    assert sum(sizes) == 30
    assert len(sizes) > 5
    assert all(4 <= size <= 5 for size in sizes[1:-1])


def gathered(gather_s: float, max_requests: int = 64, seconds: float = 60.0) -> list[list[bytes]]:
    """Return the texts of the calls that follow three requests which come one after another."""

    async def check() -> list[list[bytes]]:
        triton = FakeTriton()
        joiner = joiner_of(triton, 4, max_requests, gather_s=lambda: gather_s)
        tasks = []
        for text in (b"a", b"b", b"c"):
            message = request(text).SerializeToString()
            tasks.append(asyncio.create_task(joiner.call(("m", ""), Sent(message), seconds)))
            await all_ran()
        while not all(task.done() for task in tasks):
            (await triton.next()).answer()
            await all_ran()
        assert not joiner._lines
        return [call.texts for call in triton.calls]

    return asyncio.run(asyncio.wait_for(check(), 20))


def test_requests_that_come_during_the_wait_share_a_call():
    assert gathered(0.0) == [[b"a"], [b"b"], [b"c"]]
    assert gathered(0.05) == [[b"a", b"b", b"c"]]


def test_the_wait_ends_once_there_are_enough_requests():
    assert gathered(60.0, max_requests=3) == [[b"a", b"b", b"c"]]


def test_the_end_of_another_call_does_not_end_the_wait():
    async def check() -> None:
        triton, waits = FakeTriton(), [0.0, 60.0, 60.0]
        joiner = joiner_of(triton, 4, 2, gather_s=lambda: waits.pop(0))

        async def sent(text: bytes) -> "asyncio.Task[Response]":
            task = asyncio.create_task(joiner.call(("m", ""), Sent(request(text).SerializeToString()), 60))
            await all_ran()
            return task

        tasks = [await sent(b"at once"), await sent(b"a")]
        (await triton.next()).answer()
        await triton.none()
        tasks.append(await sent(b"b"))
        joined = await triton.next()
        assert joined.texts == [b"a", b"b"]
        joined.answer()
        await asyncio.gather(*tasks)

    asyncio.run(check())


def test_the_wait_leaves_a_request_half_of_its_time():
    assert gathered(60.0, seconds=0.2) == [[b"a", b"b", b"c"]]
