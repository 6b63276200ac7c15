"""Calls that fail, and clients that no longer wait: the others get what they would get alone."""

import asyncio
from collections.abc import Callable

from sie_triton.cluster.sidecar import joiner as module
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.records.calls import CALL
from tests.support.joined import request
from tests.support.joiners import (
    AWAY,
    INVALID,
    Call,
    Clients,
    all_ran,
    answer_to,
    of_all_items,
    texts_of_calls,
    with_clients,
)


@with_clients()
async def test_a_triton_that_dies_in_a_joined_call_is_not_called_again(clients):
    """Each of the requests may be what ended it; the runner gives them to other workers, one by one."""
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"b")]
    await clients.waiting(*tasks)
    running.answer()
    call = await clients.triton.next()
    call.answer(Response(14, "Socket closed", b""))
    assert [(await task).text for task in tasks] == ["Socket closed"] * 2
    assert len(clients.triton.calls) == 2


@with_clients()
async def test_only_the_bad_request_of_a_joined_call_fails(clients):
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"bad", b"c")]
    await clients.waiting(*tasks)
    running.answer()
    (await clients.triton.next()).answer()
    calls = [await clients.triton.next() for _ in tasks]
    assert [call.texts for call in calls] == [[b"a"], [b"bad"], [b"c"]]
    for call in calls:
        call.answer()
    good, bad, also_good = [await task for task in tasks]
    assert good == answer_to(request(b"a"))
    assert bad == Response(INVALID, "bad is invalid", b"")
    assert also_good == answer_to(request(b"c"))


@with_clients()
async def test_the_requests_of_a_joined_call_that_is_lost_are_called_alone(clients):
    """A stage died that had deferred it, so that Triton never answers."""
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"b")]
    await clients.waiting(*tasks)
    running.answer()
    call, (opened,) = await clients.triton.next(), clients.opened
    assert call.message.parameters[CALL].string_param
    opened.when_lost()
    for text in (b"a", b"b"):
        call = await clients.triton.next()
        assert call.texts == [text]
        call.answer()
    assert [await task for task in tasks] == [answer_to(request(text)) for text in (b"a", b"b")]


@with_clients()
async def test_a_request_that_no_longer_waits_leaves_its_place_to_others(clients):
    """Triton never answers its call, because a stage died with it."""
    [running] = await clients.occupy()
    lost = clients.send(b"lost")
    await clients.waiting(lost)
    running.answer()
    assert (await clients.triton.next()).texts == [b"lost"]
    following = clients.send(b"follows")
    await clients.waiting(following)
    lost.cancel()
    call = await clients.triton.next()
    assert call.texts == [b"follows"]
    call.answer()
    assert await following == answer_to(request(b"follows"))


@with_clients()
async def test_requests_are_joined_again_after_a_failure(clients):
    """The failure was of one request, not of its kind."""
    assert await texts_of_calls_after(clients, lambda call: Response(AWAY, "away", b"")) == [[b"c", b"d"]]


@with_clients()
async def test_a_response_that_cannot_be_split_is_not_tried_twice(clients):
    assert await texts_of_calls_after(clients, lambda call: Response(0, "", of_all_items())) == [[b"c"], [b"d"]]


async def texts_of_calls_after(clients: Clients, failure: Callable[[Call], Response]) -> list[list[bytes]]:
    """Return the texts of later calls, after the joined call of two requests had this response."""
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"b")]
    await clients.waiting(*tasks)
    running.answer()
    call = await clients.triton.next()
    assert call.texts == [b"a", b"b"]
    call.answer(failure(call))
    for text in (b"a", b"b"):
        call = await clients.triton.next()
        assert call.texts == [text]
        call.answer()
    for task, text in zip(tasks, (b"a", b"b"), strict=True):
        assert await task == answer_to(request(text))
    return await texts_of_calls(clients, [b"c"], [b"d"])


@with_clients()
async def test_other_kinds_are_joined_although_one_cannot_be_split(clients):
    await texts_of_calls_after(clients, lambda call: Response(0, "", of_all_items()))
    [running] = await clients.occupy()
    tasks = [clients.send(text, normalize=True) for text in (b"a", b"b")]
    await clients.waiting(*tasks)
    running.answer()
    call = await clients.triton.next()
    assert call.texts == [b"a", b"b"]
    call.answer()
    await asyncio.gather(*tasks)


@with_clients()
async def test_the_latest_kinds_that_cannot_be_split_are_kept(clients, monkeypatch):
    monkeypatch.setattr(module, "MAX_APART", 2)

    async def first_call(kind: int) -> list[bytes]:
        """Return the texts of the first call for two requests of a kind. No response of this kind can be split."""
        [running] = await clients.occupy()
        tasks = [clients.send(text, kind=kind) for text in (b"a", b"b")]
        await clients.waiting(*tasks)
        running.answer()
        first = call = await clients.triton.next()
        call.answer(Response(0, "", of_all_items()) if len(call.texts) > 1 else None)
        while call.texts != [b"b"]:
            call = await clients.triton.next()
            call.answer()
        await asyncio.gather(*tasks)
        return first.texts

    together, apart = [b"a", b"b"], [b"a"]
    assert [await first_call(kind) for kind in (1, 2, 3)] == [together] * 3
    assert [await first_call(kind) for kind in (2, 3)] == [apart] * 2
    assert await first_call(1) == together


@with_clients()
async def test_a_failed_call_makes_room_for_the_next(clients):
    [running] = await clients.occupy()
    task = clients.send(b"a")
    await clients.waiting(task)
    running.response.set_exception(RuntimeError("the channel is closed"))
    call = await clients.triton.next()
    call.answer()
    assert (await task).is_ok


@with_clients()
async def test_a_request_cancelled_while_it_waits_is_not_called(clients):
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"b", b"c")]
    await clients.waiting(*tasks)
    tasks[0].cancel()
    await all_ran()
    running.answer()
    call = await clients.triton.next()
    assert call.texts == [b"b", b"c"]
    call.answer()
    assert tasks[0].cancelled()
    assert await tasks[1] == answer_to(request(b"b"))
    assert await tasks[2] == answer_to(request(b"c"))


@with_clients()
async def test_a_request_cancelled_in_a_joined_call_does_not_disturb_the_others(clients):
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"b", b"c")]
    await clients.waiting(*tasks)
    running.answer()
    call = await clients.triton.next()
    tasks[1].cancel()
    await all_ran()
    call.answer()
    assert await tasks[0] == answer_to(request(b"a"))
    assert await tasks[2] == answer_to(request(b"c"))
    assert tasks[1].cancelled()
    await clients.triton.none()


@with_clients()
async def test_a_request_cancelled_before_its_repetition_does_not_disturb_the_others(clients):
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"bad", b"c")]
    await clients.waiting(*tasks)
    running.answer()
    (await clients.triton.next()).answer()
    call = await clients.triton.next()
    assert call.texts == [b"a"]
    tasks[0].cancel()
    tasks[1].cancel()
    await all_ran()
    while not tasks[2].done():
        call.answer()
        await all_ran()
        call = clients.triton.calls[-1]
    assert await tasks[2] == answer_to(request(b"c"))


@with_clients()
async def test_a_request_cancelled_alone_makes_room_for_the_next(clients):
    task = clients.send(b"a")
    await clients.triton.next()
    others = [clients.send(text) for text in (b"b", b"c")]
    await clients.waiting(*others)
    task.cancel()
    call = await clients.triton.next()
    assert call.texts == [b"b", b"c"]
    call.answer()
    await asyncio.gather(*others)


@with_clients()
async def test_requests_behind_cancelled_ones_of_another_kind_are_called(clients):
    [running] = await clients.occupy()
    cancelled = [clients.send(text, x=1) for text in (b"a", b"b")]
    task = clients.send(b"c", x=2)
    await clients.waiting(*cancelled, task)
    for each in cancelled:
        each.cancel()
    await all_ran()
    running.answer()
    call = await clients.triton.next()
    assert call.texts == [b"c"]
    call.answer()
    assert (await task).is_ok


@with_clients()
async def test_if_all_that_wait_are_cancelled_the_next_goes_at_once(clients):
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"b")]
    await clients.waiting(*tasks)
    for task in tasks:
        task.cancel()
    await all_ran()
    running.answer()
    await clients.triton.none()
    task = clients.send(b"c")
    call = await clients.triton.next()
    assert call.texts == [b"c"]
    call.answer()
    assert (await task).is_ok


@with_clients()
async def test_nothing_of_a_model_stays_after_its_last_call(clients):
    """Models come and go; a sidecar runs for months."""
    await texts_of_calls(clients, [b"a"], [b"b"])
    await all_ran()
    assert clients.joiner._lines == {}
