"""Calls of one Triton that many requests share. A stand-in for Triton answers when the test says so."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from sie_triton.cluster.sidecar import joiner as module
from sie_triton.cluster.sidecar.joiner import Joiner
from sie_triton.cluster.sidecar.triton import Response
from tests.pure.cluster.test_joining import add, elements_of, request, respond

NOW, SECONDS = 1000.0, 60.0

DEADLINE_EXCEEDED = 4
INVALID, AWAY = 3, 14


@dataclass
class Call:
    """A call of Triton that waits for its response."""

    message: Any
    seconds: float
    response: "asyncio.Future[Response]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def texts(self) -> list[bytes]:
        return elements_of(self.message)

    def answer(self, response: Response | None = None) -> None:
        if not self.response.done():
            self.response.set_result(response or answer_to(self.message))


def answer_to(message: Any) -> Response:
    """Return Triton's response: an error for all items if the text of one begins with "bad"."""
    for text in elements_of(message):
        if text.startswith(b"bad"):
            return Response(INVALID, f"{text.decode()} is invalid", b"")
    is_normal = "normalize" in message.parameters and message.parameters["normalize"].bool_param
    return Response(0, "", respond(message, ["scores" if is_normal else "dense"]).SerializeToString())


class FakeTriton:
    """Stand-in for LocalTriton. `calls` are all so far; `next` waits for the first that was not returned yet."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._new: asyncio.Queue[Call] = asyncio.Queue()

    @property
    def num_open(self) -> int:
        return sum(not call.response.done() for call in self.calls)

    async def call(self, method: str, data: bytes, seconds: float) -> Response:
        assert method == "ModelInfer"
        call = Call(service_pb2.ModelInferRequest.FromString(data), seconds)
        self.calls.append(call)
        self._new.put_nowait(call)
        return await call.response

    async def next(self) -> Call:
        return await asyncio.wait_for(self._new.get(), 30)

    async def none(self) -> None:
        """Check that no call follows."""
        await all_ran()
        assert self._new.empty()


async def all_ran() -> None:
    """Let every task run until it waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)


class Clients:
    """Requests on their way through a joiner."""

    def __init__(self, max_calls: int = 1, max_requests: int = 64) -> None:
        self.triton = FakeTriton()
        self.joiner = Joiner(self.triton, max_calls, max_requests)

    def send(self, *texts: bytes, model: str = "m", seconds: float = SECONDS, **options: Any) -> "asyncio.Task[Any]":
        return self.send_message(request(*texts, model=model, **options), seconds)

    def send_message(self, message: Any, seconds: float = SECONDS) -> "asyncio.Task[Any]":
        call = self.joiner.call((message.model_name, ""), message.SerializeToString(), seconds)
        return asyncio.create_task(call)

    async def occupy(self, num: int = 1) -> list[Call]:
        """Return calls that are running, of other requests."""
        for place in range(num):
            self.send(b"occupies %d" % place)
        return [await self.triton.next() for _ in range(num)]

    async def waiting(self, *tasks: "asyncio.Task[Any]") -> None:
        """Let the requests reach the joiner. None of them is answered."""
        await self.triton.none()
        assert not any(task.done() for task in tasks)


def with_clients(max_calls: int = 1, max_requests: int = 64) -> Callable[..., Any]:
    """Run a test in an event loop. It gets clients, and then its fixtures."""

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(function)
        def run(**fixtures: Any) -> None:
            async def check() -> None:
                clients = Clients(max_calls, max_requests)
                await function(clients, **fixtures)
                await all_ran()
                assert not clients.joiner._tasks

            asyncio.run(check())

        signature = inspect.signature(function)
        run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
        return run

    return decorate


# --- alone or together


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


# --- limits of a joined call


async def texts_of_calls(clients: Clients, *texts: list[bytes]) -> list[list[bytes]]:
    """Return the texts of each call that follows if requests with these texts wait."""
    [running] = await clients.occupy()
    tasks = [clients.send(*each) for each in texts]
    await clients.waiting(*tasks)
    running.answer()
    calls = []
    while not all(task.done() for task in tasks):
        calls.append(await clients.triton.next())
        calls[-1].answer()
        await all_ran()
    for task, each in zip(tasks, texts, strict=True):
        assert task.result() == answer_to(request(*each))
    return [call.texts for call in calls]


@with_clients(max_requests=3)
async def test_a_call_has_at_most_so_many_requests(clients):
    calls = await texts_of_calls(clients, *[[b"%d" % place] for place in range(7)])
    assert calls == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]


@with_clients(max_requests=1)
async def test_one_request_per_call_means_no_joining(clients):
    assert await texts_of_calls(clients, [b"a"], [b"b"]) == [[b"a"], [b"b"]]


@with_clients()
async def test_a_call_has_at_most_so_many_items(clients, monkeypatch):
    """A request that does not fit is passed by a smaller one."""
    monkeypatch.setattr(module, "MAX_ITEMS", 3)
    calls = await texts_of_calls(clients, [b"a"] * 2, [b"b"] * 2, [b"c"], [b"d"])
    assert calls == [[b"a", b"a", b"c"], [b"b", b"b", b"d"]]


@with_clients()
async def test_a_call_has_at_most_so_many_bytes(clients, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 3 * len(request(b"a" * 50).SerializeToString()))
    long, short = b"a" * 50, b"b"
    calls = await texts_of_calls(clients, *[[long]] * 4, [short])
    assert calls == [[long] * 3, [long, short]]


@with_clients()
async def test_a_request_beyond_the_limits_goes_alone(clients, monkeypatch):
    monkeypatch.setattr(module, "MAX_ITEMS", 2)
    calls = await texts_of_calls(clients, [b"a"] * 5, [b"b"], [b"c"] * 9)
    assert calls == [[b"a"] * 5, [b"b"], [b"c"] * 9]


# --- time


@pytest.fixture
def frozen_time(monkeypatch) -> Callable[[float], None]:
    """Clock that stands still until the test moves it on."""
    now = [NOW]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


@with_clients()
async def test_a_joined_call_has_the_time_of_its_most_urgent_request(clients, frozen_time):
    [running] = await clients.occupy()
    tasks = [clients.send(b"a", seconds=seconds) for seconds in (30.0, 12.0, 20.0)]
    await clients.waiting(*tasks)
    frozen_time(2.0)
    running.answer()
    call = await clients.triton.next()
    assert call.seconds == 10.0
    call.answer()
    await asyncio.gather(*tasks)


@with_clients()
async def test_a_repeated_request_has_its_own_time(clients, frozen_time):
    [running] = await clients.occupy()
    tasks = [clients.send(b"a", seconds=30.0), clients.send(b"bad", seconds=12.0)]
    await clients.waiting(*tasks)
    running.answer()
    (await clients.triton.next()).answer()
    frozen_time(2.0)
    for seconds in (28.0, 10.0):
        call = await clients.triton.next()
        assert call.seconds == seconds
        call.answer()
    await asyncio.gather(*tasks)


@with_clients()
async def test_a_request_whose_time_has_passed_is_not_called(clients, frozen_time):
    """It would end the joined call of the others, too."""
    [running] = await clients.occupy()
    late, in_time = clients.send(b"a", seconds=5.0), clients.send(b"b", seconds=60.0)
    await clients.waiting(late, in_time)
    frozen_time(7.0)
    running.answer()
    call = await clients.triton.next()
    assert call.texts == [b"b"]
    assert call.seconds > 0
    call.answer()
    assert (await late).status == DEADLINE_EXCEEDED
    assert (await in_time).is_ok


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


# --- failures


@with_clients()
async def test_only_the_bad_request_of_a_joined_call_fails(clients):
    [running] = await clients.occupy()
    tasks = [clients.send(text) for text in (b"a", b"bad", b"c")]
    await clients.waiting(*tasks)
    running.answer()
    for texts in ([b"a", b"bad", b"c"], [b"a"], [b"bad"], [b"c"]):
        call = await clients.triton.next()
        assert call.texts == texts
        await clients.waiting()
        call.answer()
    good, bad, also_good = [await task for task in tasks]
    assert good == answer_to(request(b"a"))
    assert bad == Response(INVALID, "bad is invalid", b"")
    assert also_good == answer_to(request(b"c"))


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


def of_all_items() -> bytes:
    """Return a response with one row for all items."""
    response = service_pb2.ModelInferResponse()
    add(response, "total", "FP32", [1], bytes(4))
    return response.SerializeToString()


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


# --- clients that no longer wait


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


# --- any order


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
            assert len(running) <= max_calls
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
        joiner, message = Joiner(triton, 1, 64), request(b"a").SerializeToString()
        tasks = [asyncio.create_task(joiner.call(("m", tenant), message, 5)) for tenant in ("one", "one", "two")]
        await all_ran()
        assert len(triton.calls) == 2  # the first of each tenant
        for call in [*triton.calls]:
            call.answer()
        await all_ran()
        triton.calls[-1].answer()
        await asyncio.gather(*tasks)

    asyncio.run(check())


def test_a_joined_call_has_as_many_requests_as_its_time_allows(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("sie_triton.cluster.sidecar.joiner.monotonic", lambda: now[0])

    async def check() -> list[int]:
        triton = FakeTriton()
        joiner, message = Joiner(triton, 1, 64, call_s=1.0), request(b"a").SerializeToString()
        tasks = [asyncio.create_task(joiner.call(("m", ""), message, 1000)) for _ in range(30)]
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
    assert all(4 <= size <= 5 for size in sizes[1:-1])
