"""Requests of one text each that share calls of Triton: each keeps its id, deadline, cancellation, memory and error."""

import asyncio
import inspect
from contextvars import copy_context
from dataclasses import replace
from functools import wraps

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.client.failures import StageDied
from sie_triton.doors.backend import forwarded, tenant
from sie_triton.doors.failures import Failure
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.memory import MemoryBudget, hold
from sie_triton.doors.shared_encodes import SharedEncodes
from sie_triton.errors import BusyError, DeadlinePassed, InputError, ModelError, ModelLoading, OutOfMemory
from sie_triton.system.telemetry.identity import REQUEST_ID, TRACEPARENT
from tests.support.joiners import all_ran

NUM_BYTES = 100
LIMITS = DoorLimits(shared_wait_s=3600.0)  # no test is so slow
MAX_CALLS, MAX_TEXTS, MAX_TEXT = LIMITS.num_shared_calls, LIMITS.num_shared_texts, LIMITS.shared_text_length


class Call:
    """A call of Triton, which the test ends."""

    def __init__(self, model, items, seconds, parameters) -> None:
        self.model, self.seconds, self.parameters = model, seconds, parameters
        self.texts, self.ids = [item["text"] for item in items], [item.get("id") for item in items]
        self.forwarded, self.error, self.end = forwarded.get(), None, asyncio.Event()
        self.was_cancelled = False

    def result(self):
        if self.error:
            raise self.error
        for i, text in enumerate(self.texts):
            if text == "bad":
                raise InputError.at(f"text[{i}]", "is bad")
        hold(NUM_BYTES * len(self.texts))
        return [{"dense": text, "id": own} for text, own in zip(self.texts, self.ids, strict=True)]


class Triton:
    def __init__(self) -> None:
        self.calls = []

    @property
    def running(self) -> list[Call]:
        return [call for call in self.calls if not call.end.is_set()]

    async def encode(self, model, items, seconds, parameters):
        self.calls.append(call := Call(model, items, seconds, parameters))
        try:
            await call.end.wait()
        except asyncio.CancelledError:
            call.was_cancelled = True
            call.end.set()
            raise
        return call.result()

    async def end(self, call: Call) -> None:
        call.end.set()
        await all_ran()


class Clients:
    def __init__(self, max_waiting: int = 1000, limits: DoorLimits = LIMITS) -> None:
        self.triton = Triton()
        self.shared = SharedEncodes(self.triton.encode, max_waiting, limits)

    async def send(self, *texts, model="m", seconds=60.0, id=None, tenant_of="", identity=None, **parameters):
        def start() -> asyncio.Task:
            tenant.set(tenant_of)
            forwarded.set(identity or {REQUEST_ID: texts[0]})
            items = [{"text": text, "id": id or text} for text in texts]
            return asyncio.ensure_future(self.shared.encode(model, items, seconds, parameters))

        task = copy_context().run(start)
        await all_ran()
        return task

    async def occupy(self, **given) -> list[Call]:
        for i in range(MAX_CALLS):
            await self.send(f"occupies {i}", **given)
        return self.triton.calls[-MAX_CALLS:]

    async def shared_call(self, *texts, **given):
        """Return the tasks of requests that wait, and the call that they share."""
        first, *_ = await self.occupy(**given)
        tasks = [await self.send(text, **given) for text in texts]
        await self.triton.end(first)
        return tasks, self.triton.calls[-1]

    async def end_all(self) -> None:
        while self.triton.running:
            await self.triton.end(self.triton.running[0])
        assert not [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]
        assert not self.shared._lines
        assert not self.shared._tasks


def runs(max_waiting=1000, **changed):
    """Run a test in an event loop, with clients; at the end all calls end, and nothing is left."""

    def decorate(function):
        @wraps(function)
        def run(**fixtures) -> None:
            async def check() -> None:
                clients = Clients(max_waiting, replace(LIMITS, **changed))
                await function(clients, **fixtures)
                await clients.end_all()

            asyncio.run(check())

        signature = inspect.signature(function)
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])
        return run

    return decorate


@runs()
async def test_a_request_that_finds_a_free_call_goes_alone_and_at_once(clients):
    for i in range(MAX_CALLS):
        await clients.send(f"{i}")
    assert [call.texts for call in clients.triton.calls] == [[f"{i}"] for i in range(MAX_CALLS)]
    assert [call.forwarded[REQUEST_ID] for call in clients.triton.calls] == [f"{i}" for i in range(MAX_CALLS)]


@runs()
async def test_each_gets_its_own_result_and_id(clients):
    tasks, call = await clients.shared_call("a", "b", "c")
    assert (call.texts, call.ids, call.forwarded) == (["a", "b", "c"], ["a", "b", "c"], {})
    await clients.triton.end(call)
    assert [task.result() for task in tasks] == [[{"dense": text, "id": text}] for text in "abc"]


@runs()
async def test_a_call_has_at_most_so_many_texts(clients):
    _, call = await clients.shared_call(*map(str, range(MAX_TEXTS + 3)))
    assert call.texts == [str(i) for i in range(MAX_TEXTS)]
    await clients.triton.end(call)
    assert clients.triton.calls[-1].texts == [str(MAX_TEXTS + i) for i in range(3)]


@runs()
async def test_those_of_batches_wait_for_others_and_take_texts_of_any_length(clients):
    batch = replace(LIMITS.batch, gather_s=3600.0, window_requests=3)  # no test is so slow
    clients.shared = SharedEncodes.of_batches(clients.triton.encode, replace(LIMITS, batch=batch))
    long = "x" * (MAX_TEXT + 1)
    tasks = [await clients.send(text) for text in ("a", long)]
    assert clients.triton.calls == []
    tasks.append(await clients.send("b"))
    (call,) = clients.triton.calls
    assert call.texts == ["a", long, "b"]
    await clients.triton.end(call)
    assert [task.result()[0]["dense"] for task in tasks] == ["a", long, "b"]


DIFFERENT = [
    {"model": "other"},
    {"tenant_of": "other"},
    {"seconds": 30.0},
    {"is_query": True},
    {"is_query": 1},
    {"output_types": ["dense"]},
    {"instruction": "x"},
]


@runs()
async def test_requests_that_want_something_else_have_calls_of_their_own(clients):
    await clients.occupy()
    for given_ in DIFFERENT:
        await clients.send("a", **given_)
    assert [call.texts for call in clients.triton.calls[MAX_CALLS:]] == [["a"]] * len(DIFFERENT)
    await clients.send("a", lora=None)
    assert len(clients.triton.calls) == MAX_CALLS + len(DIFFERENT), "a parameter that is not given is none"


@runs()
async def test_large_requests_neither_wait_nor_share(clients):
    await clients.occupy()
    tasks = [await clients.send("a", "b"), await clients.send("a" * (MAX_TEXT + 1))]
    image = clients.shared.encode("m", [{"text": "a", "image": b"1"}], 60, {})
    tasks.append(asyncio.ensure_future(image))
    large = [{"instruction": "x" * (MAX_TEXT + 1)}, {"output_types": ["x"] * 99}, {"output_types": ["x" * 99]}]
    tasks += [await clients.send("a", **given_) for given_ in [*large, {"output_schema": {}}]]
    await all_ran()
    assert len(clients.triton.calls) == MAX_CALLS + 7
    assert len(clients.shared._lines) == 1
    await clients.send("waits")
    assert len(clients.triton.calls) == MAX_CALLS + 7


@runs()
async def test_a_request_whose_trace_is_recorded_stays_alone(clients, monkeypatch):
    monkeypatch.setattr("sie_triton.doors.shared_encodes.recorded", lambda trace: trace == "recorded")
    await clients.occupy()
    for trace in ("recorded", "not"):
        await clients.send("a", identity={TRACEPARENT: trace})
    assert [call.forwarded for call in clients.triton.calls[MAX_CALLS:]] == [{TRACEPARENT: "recorded"}]


@runs()
async def test_an_item_at_fault_costs_the_others_one_repetition(clients):
    tasks, call = await clients.shared_call("a", "bad", "c", "bad")
    await clients.triton.end(call)
    repeated = clients.triton.calls[-4:]
    assert [each.texts for each in repeated] == [["a"], ["bad"], ["c"], ["bad"]]
    assert [each.forwarded[REQUEST_ID] for each in repeated] == ["a", "bad", "c", "bad"]
    for each in repeated:
        await clients.triton.end(each)
    assert [tasks[i].result()[0]["dense"] for i in (0, 2)] == ["a", "c"]
    assert [tasks[i].exception().field for i in (1, 3)] == ["text[0]", "text[0]"]


@pytest.mark.parametrize("error", [ModelError("ended the worker"), OutOfMemory("too large")])
@runs()
async def test_a_failure_that_one_of_them_may_have_caused_is_repeated_alone(clients, error):
    tasks, call = await clients.shared_call("a", "b")
    call.error = error
    await clients.triton.end(call)
    assert [each.texts for each in clients.triton.calls[-2:]] == [["a"], ["b"]]
    await clients.end_all()
    assert [task.result()[0]["dense"] for task in tasks] == ["a", "b"]


@pytest.mark.parametrize(
    "error", [InputError.at("parameter lora", "x"), BusyError("busy"), StageDied("died"), DeadlinePassed("late")]
)
@runs()
async def test_an_error_that_no_item_causes_is_that_of_all_and_not_repeated(clients, error):
    tasks, call = await clients.shared_call("a", "b")
    num_calls, call.error = len(clients.triton.calls), error
    await clients.triton.end(call)
    assert [task.exception() for task in tasks] == [error] * 2
    assert len(clients.triton.calls) == num_calls


@runs()
async def test_a_client_that_leaves_disturbs_no_other(clients):
    (gone, stays), call = await clients.shared_call("a", "b")
    gone.cancel()
    await all_ran()
    assert not call.was_cancelled
    await clients.triton.end(call)
    assert stays.result()[0]["dense"] == "b"


@runs()
async def test_a_call_ends_once_all_its_clients_have_left(clients):
    tasks, call = await clients.shared_call("a", "b")
    for task in tasks:
        task.cancel()
    await all_ran()
    assert call.was_cancelled


@runs()
async def test_a_client_that_leaves_while_it_waits_is_not_called(clients):
    first, *_ = await clients.occupy()
    gone, stays = await clients.send("a"), await clients.send("b")
    gone.cancel()
    await all_ran()
    await clients.triton.end(first)
    assert clients.triton.calls[-1].texts == ["b"]
    del stays


@runs()
async def test_a_request_that_waited_alone_has_the_context_of_its_client(clients):
    _, call = await clients.shared_call("a")
    assert (call.texts, call.forwarded) == (["a"], {REQUEST_ID: "a"})


@runs()
async def test_a_call_has_the_time_that_its_requests_have(clients):
    _, call = await clients.shared_call("a", "b", seconds=30.0)
    assert all(25 < each.seconds <= 30 for each in (clients.triton.calls[0], call))


@runs(shared_grace_s=60.0)
async def test_triton_has_time_to_say_why_a_request_is_late(clients):
    tasks, call = await clients.shared_call("a", "b", seconds=0.01)
    call.error = ModelLoading("fetching")
    await asyncio.sleep(0.05)
    await clients.triton.end(call)
    assert [type(task.exception()) for task in tasks] == [ModelLoading] * 2


@pytest.mark.parametrize("is_called", [True, False])
@runs(shared_grace_s=0.0)
async def test_the_deadline_ends_a_request_wherever_it_is(clients, is_called):
    first, *_ = await clients.occupy(seconds=0.2)
    task = await clients.send("a", seconds=0.2)
    if is_called:
        await clients.triton.end(first)
    with pytest.raises(DeadlinePassed, match=r"within 0.2 s"):
        await task


@runs(shared_wait_s=0.02)
async def test_no_request_waits_long_for_another_call(clients):
    """A model loads: each request waits for it in Triton, so that its answer says so."""

    await clients.occupy()
    for text in "ab":
        await clients.send(text)
    assert len(clients.triton.calls) == MAX_CALLS
    while len(clients.triton.calls) == MAX_CALLS:
        await asyncio.sleep(0.01)
    assert sorted(text for call in clients.triton.calls[MAX_CALLS:] for text in call.texts) in (["a"], ["a", "b"])
    while len({text for call in clients.triton.calls for text in call.texts}) < MAX_CALLS + 2:
        await asyncio.sleep(0.01)


@runs(max_waiting=1)
async def test_beyond_the_limit_requests_are_called_at_once_so_that_triton_refuses_them(clients):
    await clients.occupy()
    for text in ("waits", "called", "called too"):
        await clients.send(text)
    assert [call.texts for call in clients.triton.calls[MAX_CALLS:]] == [["called"], ["called too"]]


@pytest.mark.parametrize(("budget", "refused"), [(10 * NUM_BYTES, 0), (MAX_CALLS * NUM_BYTES + 2 * NUM_BYTES, 1)])
def test_each_holds_the_memory_of_its_part_of_the_response(budget, refused):
    async def check() -> None:
        clients, memory = Clients(), MemoryBudget(budget)

        async def request(text: str) -> None:
            with memory.held() as held:
                await clients.shared.encode("m", [{"text": text}], 60, {})
                assert held.num_bytes == NUM_BYTES
                await leave.wait()

        leave = asyncio.Event()
        tasks = [asyncio.create_task(request(str(i))) for i in range(MAX_CALLS + 3)]
        await all_ran()
        while clients.triton.running:
            await clients.triton.end(clients.triton.running[0])
        leave.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(each, Failure) for each in found) == refused
        assert sum(each is None for each in found) == len(tasks) - refused
        assert memory.used == 0

    asyncio.run(check())


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "bad"]), st.booleans()), min_size=1, max_size=40), st.data())
def test_in_any_order_each_request_gets_what_it_would_get_alone(requests, data):
    """Calls end in any order; requests come between them, and some of their clients leave."""

    async def check() -> None:
        clients, tasks, gone = Clients(), [], set()
        while len(tasks) < len(requests) or clients.triton.running:
            running = clients.triton.running
            if len(tasks) < len(requests) and (not running or data.draw(st.integers(0, 3))):
                text, is_query = requests[len(tasks)]
                tasks.append(await clients.send(text, id=str(len(tasks)), is_query=is_query))
                if not data.draw(st.integers(0, 9)):
                    gone.add(len(tasks) - 1)
                    tasks[-1].cancel()
                    await all_ran()
            else:
                await clients.triton.end(running[data.draw(st.integers(0, len(running) - 1))])
        await clients.end_all()
        for i, (task, (text, _)) in enumerate(zip(tasks, requests, strict=True)):
            if i in gone:
                assert task.cancelled()
            elif text == "bad":
                assert task.exception().field == "text[0]"
            else:
                assert task.result() == [{"dense": text, "id": str(i)}]

    asyncio.run(check())
