"""Work that its worker does not finish is done by another one, and answered once."""

import asyncio
import time

from sie_triton.cluster import subjects
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.messages import Work
from sie_triton.cluster.sidecar.metrics import WORK
from sie_triton.cluster.sidecar.server import Response
from tests.process.cluster.conftest import (
    DIED,
    MODEL,
    FakeTriton,
    asked,
    in_cluster,
    left_in_stream,
    request,
    served,
    until,
    until_empty,
)


async def asked_and_hanging(queue: Queue, triton: FakeTriton) -> "asyncio.Task[str]":
    """Ask for "a", and return once a Triton has the request, which it never answers."""
    began = asyncio.Event()

    async def hang(name: str) -> Response:
        began.set()
        await asyncio.sleep(1000)
        raise AssertionError

    triton.behave = hang
    answer = asyncio.create_task(asked(queue, "a"))
    await began.wait()
    return answer


@in_cluster(ack_wait_s=0.5, report_s=0.1)
async def test_work_of_a_worker_that_ends_goes_to_another_one(cluster):
    queue = await cluster.gateway()
    first, triton = await cluster.worker("w0")
    await served(queue)
    answer = await asked_and_hanging(queue, triton)
    _, other = await cluster.worker("w1")
    await first._nats._close("closed", False)  # as if killed: no answer and no word
    assert await answer == "a"
    assert other.seen == ["a"]


@in_cluster(ack_wait_s=1000, drain_s=0.1)
async def test_work_that_a_sidecar_cannot_finish_before_its_end_is_given_back(cluster):
    queue = await cluster.gateway()
    first, triton = await cluster.worker("w0")
    await served(queue)
    answer = await asked_and_hanging(queue, triton)
    _, other = await cluster.worker("w1")
    await first.drain()
    await first.__aexit__()
    assert await answer == "a"
    assert other.seen == ["a"]


@in_cluster(ack_wait_s=1000)
async def test_work_of_a_killed_sidecar_is_given_back_by_the_next_one(cluster, tmp_path):
    """The queue alone would give it to nobody else for a long time."""
    queue = await cluster.gateway()
    first, triton = await cluster.worker("w", data_dir=tmp_path / "w")
    await served(queue)
    answer = await asked_and_hanging(queue, triton)
    await first._nats._close("closed", False)  # as if killed: no word, and no time to clear its receipts
    _, other = await cluster.worker("w", data_dir=tmp_path / "w")
    assert await answer == "a"
    assert other.seen == ["a"]
    await until_empty(queue)


@in_cluster(ack_wait_s=0.5, report_s=0.1)
async def test_work_that_takes_long_stays_with_its_worker(cluster):
    """Its sidecar reports that it is in progress."""
    queue, sidecar, triton = await cluster.pair()
    receipts = []

    async def slow(name: str) -> None:
        (current,) = sidecar._runner._open.values()
        receipts.append(current.receipt)
        await asyncio.sleep(1.2)
        receipts.append(current.receipt)

    triton.behave = slow
    assert await asked(queue, "a") == "a"
    assert triton.seen == ["a"]
    assert len(receipts) == 2 == 1 + len(set(receipts))  # it was delivered once


@in_cluster(ack_wait_s=0.5, report_s=0.1)
async def test_an_answer_that_gets_lost_is_given_again(cluster):
    queue, sidecar, triton = await cluster.pair()
    lost, publish = [], sidecar._runner._publish

    async def losing(subject: str, data: bytes = b"") -> None:
        if subject.startswith("sie.answer") and not lost:
            lost.append(data)
            return
        await publish(subject, data)

    sidecar._runner._publish = losing
    assert await asked(queue, "a") == "a"
    assert (len(lost), triton.seen) == (1, ["a", "a"])
    await until_empty(queue)


@in_cluster()
async def test_a_second_answer_changes_nothing_and_ends_the_work(cluster):
    queue, sidecar, _ = await cluster.pair()
    publish = sidecar._runner._publish

    async def twice(subject: str, data: bytes = b"") -> None:
        await publish(subject, data)
        await publish(subject, data)

    sidecar._runner._publish = twice
    assert await asyncio.gather(*(asked(queue, str(i)) for i in range(20))) == [str(i) for i in range(20)]
    await until_empty(queue)


@in_cluster()
async def test_a_request_that_is_sent_twice_is_run_once_at_a_time(cluster):
    queue, _, triton = await cluster.pair()
    gate = triton.hold()
    answer = asyncio.create_task(asked(queue, "a"))
    await until(lambda: triton.seen == ["a"])
    double = Work(queue.name, 1, time.time() + 20, MODEL).packed(request("a"))
    await queue._js.publish(subjects.work("default", MODEL), double)
    await asyncio.sleep(0.2)
    gate.set()
    assert await answer == "a"
    await until_empty(queue)
    assert triton.seen == ["a"]


@in_cluster(report_s=100, ack_wait_s=0.5)
async def test_work_that_the_queue_delivers_again_while_it_runs_runs_once(cluster):
    """For example because the reports of its progress were lost; it stays in the queue until it is answered."""
    queue, sidecar, triton = await cluster.pair()
    gate, repeated = triton.hold(), WORK.labels("repeated")._value.get()
    answer = asyncio.create_task(asked(queue, "a"))
    await until(lambda: bool(sidecar._runner._open))
    (current,) = sidecar._runner._open.values()
    first = current.receipt
    await until(lambda: current.receipt != first)
    assert await left_in_stream(queue) == 1
    await until(lambda: WORK.labels("repeated")._value.get() > repeated)
    gate.set()
    assert await answer == "a"
    await until_empty(queue)
    assert triton.seen == ["a"]


@in_cluster()
async def test_a_busy_triton_gets_the_request_again_later(cluster):
    queue, _, triton = await cluster.pair()

    async def busy_once(name: str) -> Response | None:
        return Response(14, "in ensemble 't__m', [busy retry=5] 512 requests", b"") if len(triton.seen) == 1 else None

    triton.behave = busy_once
    assert await asked(queue, "a") == "a"
    assert triton.seen == ["a", "a"]


@in_cluster()
async def test_bytes_that_triton_cannot_parse_are_delivered_once(cluster):
    """As Triton 24.10 refuses an input that is no message; a gateway reads the name and the parameters only."""
    queue, _, triton = await cluster.pair()

    triton.answer(Response(13, "Unable to parse request", b""))
    answer, _ = await queue.submit("default", MODEL, request("a"), 20)
    assert (answer.status, answer.text) == (13, "Unable to parse request")
    assert triton.seen == ["a"]
    await until_empty(queue)


@in_cluster()
async def test_a_triton_that_ends_slowly_ends_no_request_twice(cluster):
    """A request comes again to the same Triton, which still breaks connections and is not ready."""
    queue, _, triton = await cluster.pair()
    ends, is_back = asyncio.Event(), asyncio.Event()

    async def end(_: str) -> Response | None:
        if is_back.is_set():
            return None
        ends.set()
        return DIED

    async def is_ready() -> bool:
        return is_back.is_set() or not ends.is_set()

    triton.behave, triton.is_ready = end, is_ready
    waiting = asyncio.create_task(asked(queue, "x"))
    await ends.wait()
    await asyncio.sleep(0.7)  # in which it would come again
    is_back.set()
    assert await waiting == "x"
    await until_empty(queue)


@in_cluster()
async def test_a_request_that_ends_two_tritons_is_put_aside_and_its_neighbours_are_answered(cluster):
    queue = await cluster.gateway()
    workers = [await cluster.worker(name) for name in ("w0", "w1")]
    await served(queue, 2)
    is_dead = asyncio.Event()

    async def behave(name: str) -> Response | None:
        """Die of the poison, and with it all that runs beside it."""
        if name == "poison":
            await asyncio.sleep(0.1)
            is_dead.set()
            return DIED
        if not is_dead.is_set():
            await is_dead.wait()
            return DIED
        return None

    for _, triton in workers:
        triton.behave = behave
    neighbours = [asyncio.create_task(asked(queue, str(i))) for i in range(10)]
    answer, _ = await queue.submit("default", MODEL, request("poison"), 20)
    assert (answer.status, "put aside" in answer.text) == (13, True)
    assert await asyncio.gather(*neighbours) == [str(i) for i in range(10)]
    assert sum(triton.seen.count("poison") for _, triton in workers) == 2
    dead = await (await cluster.operator()).get_last_msg(subjects.DEAD_STREAM, subjects.dead("default", MODEL))
    work, body = Work.read(dead.data)
    assert (work.num_deaths, body) == (2, request("poison"))
    await until_empty(queue)
