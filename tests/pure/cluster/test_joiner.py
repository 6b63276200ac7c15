"""Calls of one Triton that many requests share: which go alone, and which together."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from sie_triton.cluster.sidecar import joiner as module
from sie_triton.cluster.sidecar.joiner import Sent
from sie_triton.cluster.sidecar.triton import Response
from tests.support.joined import request
from tests.support.joiners import (
    Clients,
    FakeTriton,
    all_ran,
    answer_to,
    joiner_of,
    texts_of_calls,
    with_clients,
)


@with_clients(max_calls=3)
async def test_the_first_requests_go_alone_and_at_once(clients):
    tasks = [clients.send(b"%d" % place) for place in range(3)]
    calls = [await clients.triton.next() for _ in tasks]
    assert [call.texts for call in calls] == [[b"0"], [b"1"], [b"2"]]
    for call in calls:
        call.answer()
    for place, task in enumerate(tasks):
        assert await task == answer_to(request(b"%d" % place))


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


@with_clients()
async def test_a_request_that_waited_without_others_goes_unchanged(clients):
    [running] = await clients.occupy()
    message = request(b"a", id="7", timeout=5, sie_call="1.2")
    task = clients.send_message(message)
    await clients.waiting(task)
    running.answer()
    call = await clients.triton.next()
    assert call.message == message
    call.answer(Response(5, "text", b""))
    assert await task == Response(5, "text", b"")


@with_clients()
async def test_requests_with_different_keys_go_apart_in_order(clients):
    [running] = await clients.occupy()
    sent = [(b"a", True), (b"b", False), (b"c", True), (b"d", False), (b"e", True)]
    tasks = [clients.send(text, normalize=normalize) for text, normalize in sent]
    await clients.waiting(*tasks)
    running.answer()
    for texts in ([b"a", b"c", b"e"], [b"b", b"d"]):
        call = await clients.triton.next()
        assert call.texts == texts
        call.answer()
    for task, (text, normalize) in zip(tasks, sent, strict=True):
        assert await task == answer_to(request(text, normalize=normalize))


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


@with_clients()
async def test_requests_without_a_key_are_joined_with_none(clients):
    [running] = await clients.occupy()
    traces = [f"00-{'4' * 32}-{'5' * 16}-01"] * 2
    tasks = [clients.send(b"a", traceparent=trace) for trace in traces]
    await clients.waiting(*tasks)
    running.answer()
    for _ in tasks:
        call = await clients.triton.next()
        assert call.texts == [b"a"]
        call.answer()
    for task in tasks:
        assert await task == answer_to(request(b"a"))


@with_clients()
async def test_lines_do_not_wait_for_each_other(clients):
    await clients.occupy()
    task = clients.send(b"a", model="other")
    call = await clients.triton.next()
    assert call.message.model_name == "other"
    call.answer()
    assert (await task).is_ok
    clients.triton.calls[0].answer()


@with_clients(max_calls=2)
async def test_different_keys_use_all_calls(clients):
    running = await clients.occupy(2)
    tasks = [clients.send(b"%d" % place, x=place) for place in range(4)]
    await clients.waiting(*tasks)
    running[0].answer()
    running[1].answer()
    calls = [await clients.triton.next() for _ in range(2)]
    await clients.triton.none()
    for call in calls:
        call.answer()
    for call in [await clients.triton.next() for _ in range(2)]:
        call.answer()
    assert [call.texts for call in clients.triton.calls[2:]] == [[b"0"], [b"1"], [b"2"], [b"3"]]
    await asyncio.gather(*tasks)


@with_clients(max_requests=3)
async def test_a_call_has_at_most_so_many_requests(clients):
    calls = await texts_of_calls(clients, *[[b"%d" % place] for place in range(7)])
    assert calls == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]


@with_clients(max_requests=1)
async def test_one_request_per_call_means_no_joining(clients):
    assert await texts_of_calls(clients, [b"a"], [b"b"]) == [[b"a"], [b"b"]]


@with_clients()
async def test_a_call_has_at_most_so_many_items(clients):
    """A request that does not fit is passed by a smaller one."""
    clients.joiner._max_items = 3
    calls = await texts_of_calls(clients, [b"a"] * 2, [b"b"] * 2, [b"c"], [b"d"])
    assert calls == [[b"a", b"a", b"c"], [b"b", b"b", b"d"]]


@with_clients()
async def test_a_call_has_at_most_so_many_bytes(clients):
    clients.joiner._max_bytes = 3 * len(request(b"a" * 50).SerializeToString())
    long, short = b"a" * 50, b"b"
    calls = await texts_of_calls(clients, *[[long]] * 4, [short])
    assert calls == [[long] * 3, [long, short]]


@with_clients()
async def test_a_request_beyond_the_limits_goes_alone(clients):
    clients.joiner._max_items = 2
    calls = await texts_of_calls(clients, [b"a"] * 5, [b"b"], [b"c"] * 9)
    assert calls == [[b"a"] * 5, [b"b"], [b"c"] * 9]


LARGE = request(b"a" * (module.MAX_BYTES + 1))
OF_EMPTY_INPUTS = service_pb2.ModelInferRequest(model_name="m", inputs=[{}] * 50_000, raw_input_contents=[b""] * 50_000)


@pytest.mark.parametrize("message", [LARGE, OF_EMPTY_INPUTS], ids=["large", "of empty inputs"])
@with_clients()
async def test_of_a_request_that_is_not_joined_only_the_bytes_are_kept(clients, message):
    """Its parts may take many times as much memory."""
    [running] = await clients.occupy()
    tasks = [clients.send_message(message) for _ in range(2)]
    await clients.waiting(*tasks)
    for each in clients.joiner._lines["m", ""].waiting:
        assert (each.weight.key, each.request.message.ByteSize()) == (None, 0)
    running.answer()
    for _ in tasks:
        call = await clients.triton.next()
        assert call.message == message
        call.answer(Response(3, "", b""))
    await asyncio.gather(*tasks)


@with_clients()
async def test_a_large_request_is_not_parsed(clients, monkeypatch):
    [running] = await clients.occupy()
    monkeypatch.setattr(module, "key_of", lambda message: pytest.fail("it was parsed"))
    task = clients.send_message(LARGE)
    await clients.waiting(task)
    running.answer()
    (await clients.triton.next()).answer()
    await task


REQUESTS = st.lists(
    st.tuples(st.lists(st.sampled_from([b"a", b"b", b"c", b"bad"]), min_size=1, max_size=3), st.booleans()),
    min_size=1,
    max_size=12,
)


@given(REQUESTS, st.integers(1, 3), st.integers(1, 4), st.data())
def test_in_any_order_each_request_gets_what_it_would_get_alone(requests, max_calls, max_requests, data):
    """Calls end in any order; requests come between them."""

    async def check() -> None:
        clients = Clients(max_calls, max_requests)
        messages = [request(*texts, normalize=normalize) for texts, normalize in requests]
        tasks = []
        while len(tasks) < len(messages) or not all(task.done() for task in tasks):
            running = [call for call in clients.triton.calls if not call.response.done()]
            assert len(running) <= max_calls * max_requests  # those of a failed call are repeated at once
            if len(tasks) < len(messages) and (not running or data.draw(st.booleans())):
                tasks.append(clients.send_message(messages[len(tasks)]))
            else:
                running[data.draw(st.integers(0, len(running) - 1))].answer()
            await all_ran()
        for message, task in zip(messages, tasks, strict=True):
            assert task.result() == answer_to(message)
        assert clients.triton.num_open == 0

    asyncio.run(check())


def test_each_tenant_has_calls_of_its_own():
    async def check() -> None:
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

    asyncio.run(check())
