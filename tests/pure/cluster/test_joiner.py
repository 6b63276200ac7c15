"""Calls of one Triton that many requests share: which go together, and what becomes of those of a failed call.

What holds for all shared calls is tested with those of the door (tests/pure/doors/test_shared_encodes.py).
"""

import asyncio

import pytest
from tritonclient.grpc import service_pb2

from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.sidecar import joining as module
from sie_triton.cluster.sidecar.joining import Sent
from sie_triton.cluster.sidecar.server import Response
from sie_triton.doors import shared_calls
from sie_triton.records.calls import CALL
from tests.support.joined import request
from tests.support.joiners import (
    AWAY,
    NOW,
    Clients,
    FakeTriton,
    all_ran,
    answer_to,
    in_loop,
    joiner_of,
    of_all_items,
    texts_of_calls,
    with_clients,
)


@with_clients()
async def test_a_request_that_goes_alone_is_not_changed(clients):
    message = request(b"a", id="7", timeout=5, sie_call="1.2", x_request_id="r")
    task = clients.send_message(message, 5.0)
    call = await clients.triton.next()
    assert (call.message, call.seconds) == (message, 5.0)
    response = Response(5, "text", b"body")
    call.answer(response)
    assert await task == response


@with_clients(max_calls=2)
async def test_later_requests_are_joined_when_a_call_ends(clients):
    first, second = await clients.occupy(2)
    messages = [request(b"a", id="1"), request(b"b", b"c", id="2"), request(b"d", id="3")]
    tasks = [clients.send_message(each) for each in messages]
    await clients.waiting(*tasks)
    second.answer()
    call = await clients.triton.next()
    assert call.texts == [b"a", b"b", b"c", b"d"]
    call.answer()
    for message, task in zip(messages, tasks, strict=True):
        assert await task == answer_to(message)
    assert not first.response.done()
    first.answer()


@with_clients(max_requests=2)
async def test_a_request_that_is_passed_keeps_its_place(clients):
    [running] = await clients.occupy()
    tasks = [clients.send(text, x=x) for text, x in ((b"a", 1), (b"b", 2), (b"c", 1), (b"d", 1), (b"e", 2))]
    await clients.waiting(*tasks)
    running.answer()
    for texts in ([b"a", b"c"], [b"b", b"e"], [b"d"]):
        call = await clients.triton.next()
        assert call.texts == texts
        call.answer()
    await asyncio.gather(*tasks)


def items(words: str) -> list[list[bytes]]:
    """Return the items of requests: each letter of a word is one."""
    return [[letter.encode() for letter in word] for word in words.split()]


@pytest.mark.parametrize(
    ("max_requests", "max_items", "requests", "calls"),
    [
        (3, 99, "a b c d e f g", "abc def g"),
        (1, 99, "a b", "a b"),
        (99, 3, "aa bb c d", "aac bbd"),  # one that does not fit is passed by a smaller one
        (99, 2, "aaaaa b ccccccccc", "aaaaa b ccccccccc"),
    ],
)
@in_loop
async def test_a_call_has_at_most_so_many_requests_and_items(max_requests, max_items, requests, calls):
    clients = Clients(1, max_requests, max_joined_items=max_items)
    assert await texts_of_calls(clients, *items(requests)) == items(calls)


@with_clients(max_joined_bytes=3 * len(request(b"a" * 50).SerializeToString()))
async def test_a_call_has_at_most_so_many_bytes(clients):
    long, short = b"a" * 50, b"b"
    assert await texts_of_calls(clients, *[[long]] * 4, [short]) == [[long] * 3, [long, short]]
    assert clients.joiner._lines == {}  # a sidecar runs for months, and models come and go


LARGE = request(b"a" * (SidecarLimits.max_joined_bytes + 1))
OF_EMPTY_INPUTS = service_pb2.ModelInferRequest(model_name="m", inputs=[{}] * 50_000, raw_input_contents=[b""] * 50_000)


@pytest.mark.parametrize("message", [LARGE, OF_EMPTY_INPUTS], ids=["large", "of empty inputs"])
@with_clients()
async def test_of_a_request_that_is_not_joined_only_the_bytes_are_kept(clients, monkeypatch, message):
    """Its parts may take many times as much memory; a large one is not even parsed."""
    if message is LARGE:
        monkeypatch.setattr(module, "key_of", lambda *_: pytest.fail("it was parsed"))
    running = asyncio.create_task(clients.joiner.call(("m", ""), Sent(b""), 60))
    call = await clients.triton.next()
    tasks = [clients.send_message(message) for _ in range(2)]
    await clients.waiting(*tasks)
    for each in clients.joiner._lines["m", ""].waiting:
        assert (each.weight.key, each.request.message.ByteSize()) == (None, 0)
    call.answer(Response(3, "", b""))
    for _ in tasks:
        call = await clients.triton.next()
        assert call.message == message
        call.answer(Response(3, "", b""))
    await asyncio.gather(running, *tasks)


@in_loop
async def test_each_tenant_has_calls_of_its_own():
    triton = FakeTriton()
    joiner, message = joiner_of(triton), request(b"a").SerializeToString()
    tasks = [asyncio.create_task(joiner.call(("m", tenant), Sent(message), 5)) for tenant in ("one", "one", "two")]
    await all_ran()
    assert len(triton.calls) == 2  # the first of each tenant
    for call in [*triton.calls]:
        call.answer()
    await all_ran()
    triton.calls[-1].answer()
    await asyncio.gather(*tasks)


# --- calls that fail


@with_clients()
async def test_a_triton_that_dies_in_a_joined_call_is_not_called_again(clients):
    """Each of the requests may be what ended it; the runner gives them to other workers, one by one."""
    tasks, call = await clients.following(b"a", b"b")
    call.answer(Response(AWAY, "Socket closed", b""))
    assert [(await task).text for task in tasks] == ["Socket closed"] * 2
    assert len(clients.triton.calls) == 2


@with_clients()
async def test_the_requests_of_a_joined_call_that_is_lost_are_called_alone(clients):
    """A stage died that had deferred it, so that Triton never answers."""
    tasks, call = await clients.following(b"a", b"b")
    (opened,) = clients.opened
    assert call.message.parameters[CALL].string_param
    opened.when_lost()
    for text in (b"a", b"b"):
        call = await clients.triton.next()
        assert call.texts == [text]
        call.answer()
    assert [await task for task in tasks] == [answer_to(request(text)) for text in (b"a", b"b")]


async def first_call(clients: Clients, failure: Response | None, **options: int) -> list[bytes]:
    """Return the texts of the first call for two requests, which fails if both share it."""
    tasks, call = await clients.following(b"a", b"b", **options)
    texts = call.texts
    call.answer(failure if len(texts) > 1 else None)
    while call.texts[-1] != b"b" or (failure and len(call.texts) > 1):
        call = await clients.triton.next()
        call.answer()
    assert await asyncio.gather(*tasks) == [answer_to(request(text, **options)) for text in (b"a", b"b")]
    return texts


UNSPLITTABLE = Response(0, "", of_all_items())


@with_clients()
async def test_a_kind_whose_response_cannot_be_split_is_not_joined_again(clients):
    """Another failure was of one request, not of its kind."""
    together, apart = [b"a", b"b"], [b"a"]
    assert await first_call(clients, Response(AWAY, "away", b"")) == together
    assert await first_call(clients, UNSPLITTABLE) == together
    assert await first_call(clients, UNSPLITTABLE) == apart
    assert await first_call(clients, None, normalize=True) == together


@with_clients(max_apart=2)
async def test_the_latest_kinds_that_cannot_be_split_are_kept(clients):
    together, apart = [b"a", b"b"], [b"a"]
    assert [await first_call(clients, UNSPLITTABLE, kind=kind) for kind in (1, 2, 3)] == [together] * 3
    assert [await first_call(clients, UNSPLITTABLE, kind=kind) for kind in (2, 3)] == [apart] * 2
    assert await first_call(clients, UNSPLITTABLE, kind=1) == together


# --- times


@with_clients()
async def test_a_joined_call_has_the_time_of_its_most_patient_request_and_a_repeated_one_its_own(clients, monkeypatch):
    now = [NOW]
    monkeypatch.setattr(shared_calls, "monotonic", lambda: now[0])
    [running] = await clients.occupy()
    tasks = [clients.send(b"a", seconds=30.0), clients.send(b"bad", seconds=12.0)]
    await clients.waiting(*tasks)
    now[0] += 2.0
    running.answer()
    joined = await clients.triton.next()
    joined.answer()
    calls = [await clients.triton.next() for _ in tasks]
    assert [call.seconds for call in (joined, *calls)] == [28.0, 28.0, 10.0]
    for call in calls:
        call.answer()
    assert [response.waited_s for response in await asyncio.gather(*tasks)] == [2.0, 2.0]


def test_a_joined_call_has_as_many_requests_as_its_time_allows(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(shared_calls, "monotonic", lambda: now[0])

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


@pytest.mark.parametrize(
    ("gather_s", "max_requests", "seconds", "num_calls"),
    [(0.0, 64, 60.0, 3), (0.05, 64, 60.0, 1), (60.0, 3, 60.0, 1), (60.0, 64, 0.2, 1)],
    ids=["no wait", "until its end", "until there are enough", "for half of the time of a request"],
)
@in_loop
async def test_requests_that_come_during_the_wait_share_a_call(gather_s, max_requests, seconds, num_calls):
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
    assert len(triton.calls) == num_calls
    assert [text for call in triton.calls for text in call.texts] == [b"a", b"b", b"c"]


@in_loop
async def test_the_end_of_another_call_does_not_end_the_wait():
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
