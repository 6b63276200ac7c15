"""What the queue promises: whatever it accepts is answered once, or refused with a reason, before its deadline."""

import asyncio
import time

import pytest
from nats.js.errors import NotFoundError
from tritonclient.grpc import service_pb2

from sie_triton.cluster import connection, subjects
from sie_triton.cluster.messages import Answer, Work
from sie_triton.cluster.payloads import Payloads
from sie_triton.cluster.sidecar import runner
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.errors import BusyError, DeadlinePassed, InputError, Unreachable
from tests.process.cluster.conftest import MODEL, OTHER, Cluster, asked, request, served, until

BUSY = Response(14, "in ensemble 't__m', [busy retry=5] 512 requests are in progress", b"")
DIED = Response(14, "Socket closed", b"")


@pytest.fixture
def quick(monkeypatch):
    """Work whose worker is silent goes to another one after half a second."""
    monkeypatch.setattr(connection, "ACK_WAIT_S", 0.5)
    monkeypatch.setattr(runner, "REPORT_S", 0.1)


async def left_in_stream(queue) -> int:
    try:
        info = await queue._js.stream_info(subjects.stream("default"))
    except NotFoundError:
        return 0
    return info.state.messages


async def until_empty(queue) -> None:
    while await left_in_stream(queue):
        await asyncio.sleep(0.02)


def test_a_request_is_answered_and_leaves_the_queue(run):
    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)
        assert await asked(queue, "a") == "a"
        assert triton.seen == ["a"]
        await until_empty(queue)

    run(test)


def test_many_requests_of_two_gateways_each_get_their_own_answer(run):
    async def test(cluster: Cluster) -> None:
        queues = [await cluster.gateway() for _ in range(2)]
        workers = [await cluster.worker(name) for name in ("w0", "w1", "w2")]
        for queue in queues:
            await served(queue, 3)
        names = [f"{i}" for i in range(300)]
        answers = await asyncio.gather(
            *(asked(queues[i % 2], name, (MODEL, OTHER)[i % 3 % 2]) for i, name in enumerate(names))
        )
        assert answers == names
        assert sorted(each for _, triton in workers for each in triton.seen) == sorted(names)
        await until_empty(queues[0])

    run(test)


def test_an_error_of_triton_reaches_the_gateway_as_it_is(run):
    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")

        async def refuse(name: str) -> Response:
            return Response(3, "in ensemble 't__m', [input field=text[0]] text[0]: is empty", b"")

        triton.behave = refuse
        await served(queue)
        answer, body = await queue.submit("default", MODEL, request("a"), 5)
        assert (answer.status, answer.text, body) == (
            3,
            "in ensemble 't__m', [input field=text[0]] text[0]: is empty",
            b"",
        )

    run(test)


def test_an_answer_larger_than_a_message_comes_in_parts(run):
    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        large = service_pb2.ModelInferResponse(id="a", raw_output_contents=[bytes(range(256)) * 100_000])

        async def answer(name: str) -> Response:
            return Response(0, "", large.SerializeToString())

        triton.behave = answer
        await served(queue)
        _, body = await queue.submit("default", MODEL, request("a"), 20)
        assert body == large.SerializeToString()
        await until_empty(queue)

    run(test)


def test_a_request_larger_than_a_message_is_refused_by_name(run):
    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway()
        with pytest.raises(InputError, match="the queue takes"):
            await queue.submit("default", MODEL, bytes(20 * 1024**2), 5)

    run(test)


def large(name: str) -> bytes:
    return service_pb2.ModelInferRequest(
        model_name=MODEL, id=name, raw_input_contents=[bytes(9 * 1024**2)]
    ).SerializeToString()


def test_a_request_larger_than_a_message_goes_through_the_payload_store(run, tmp_path):
    async def test(cluster: Cluster) -> None:
        store = {"payload_store_url": str(tmp_path / "objects")}
        queue, (_, triton) = await cluster.gateway(**store), await cluster.worker("w", **store)
        await served(queue)
        sizes = []

        async def call(method: str, data: bytes, seconds: float) -> Response:
            sizes.append(len(data))
            return Response(0, "", service_pb2.ModelInferResponse(id="a").SerializeToString())

        triton.call = call
        answer, _ = await queue.submit("default", MODEL, large("a"), 20)
        assert answer.status == 0
        assert sizes[0] > 9 * 1024**2
        await until(lambda: not payloads(tmp_path))
        await until_empty(queue)

    run(test)


def payloads(tmp_path) -> list[str]:
    return [path.name for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def test_payloads_of_a_gateway_that_ended_are_removed(tmp_path):
    store = Payloads((tmp_path / "objects").as_uri())
    asyncio.run(store.put("gone", 1, time.time() - 1000, b"late"))
    asyncio.run(store.put("alive", 2, time.time() + 1000, b"in time"))
    asyncio.run(store.keep("gone", 3, b"dead"))
    assert asyncio.run(store.sweep()) == 1
    assert sorted(payloads(tmp_path)) == ["alive.2", "gone.3"]


def test_a_large_poisoned_request_is_kept_in_the_store(run, tmp_path):
    async def test(cluster: Cluster) -> None:
        store = {"payload_store_url": str(tmp_path / "objects")}
        queue, (_, triton) = await cluster.gateway(**store), await cluster.worker("w", **store)
        await served(queue)

        async def die(name: str) -> Response:
            return DIED

        triton.behave = die
        answer, _ = await queue.submit("default", MODEL, large("poison"), 20)
        assert (answer.status, triton.seen) == (13, ["poison", "poison"])
        dead = await (await cluster.operator()).get_last_msg(subjects.DEAD_STREAM, subjects.dead("default", MODEL))
        work, _ = Work.read(dead.data)
        assert (tmp_path / "objects" / work.payload).read_bytes() == large("poison")

    run(test)


def test_the_stages_get_the_time_that_is_left(run):
    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        timeouts = []

        async def call(method: str, data: bytes, seconds: float) -> Response:
            message = service_pb2.ModelInferRequest.FromString(data)
            timeouts.append(message.parameters["timeout"].int64_param / 1e6)
            return Response(0, "", service_pb2.ModelInferResponse().SerializeToString())

        triton.call = call
        await served(queue)
        message = service_pb2.ModelInferRequest(model_name=MODEL)
        message.parameters["timeout"].int64_param = 7_000_000
        await queue.submit("default", MODEL, message.SerializeToString(), 30)
        assert 20 < timeouts[0] <= 30

    run(test)


def test_work_of_a_worker_that_ends_goes_to_another_one(run, quick):
    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway()
        first, triton = await cluster.worker("w0")
        await served(queue)
        began = asyncio.Event()

        async def hang(name: str) -> Response:
            began.set()
            await asyncio.sleep(1000)
            raise AssertionError

        triton.behave = hang
        answer = asyncio.create_task(asked(queue, "a"))
        await began.wait()
        _, other = await cluster.worker("w1")
        first._runner.close()  # as if killed: no answer and no word
        await first._nats._close("closed", False)
        assert await answer == "a"
        assert other.seen == ["a"]

    run(test)


def test_work_that_takes_long_stays_with_its_worker(run, quick):
    """Its sidecar reports that it is in progress."""

    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)

        async def slow(name: str) -> None:
            await asyncio.sleep(2)

        triton.behave = slow
        assert await asked(queue, "a") == "a"
        assert triton.seen == ["a"]

    run(test)


def test_an_answer_that_gets_lost_is_given_again(run, quick):
    async def test(cluster: Cluster) -> None:
        queue, (sidecar, triton) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)
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

    run(test)


def test_a_second_answer_changes_nothing_and_ends_the_work(run):
    async def test(cluster: Cluster) -> None:
        queue, (sidecar, _) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)
        publish = sidecar._runner._publish

        async def twice(subject: str, data: bytes = b"") -> None:
            await publish(subject, data)
            await publish(subject, data)

        sidecar._runner._publish = twice
        assert await asyncio.gather(*(asked(queue, str(i)) for i in range(20))) == [str(i) for i in range(20)]
        await until_empty(queue)

    run(test)


def test_a_request_that_is_sent_twice_is_run_once_at_a_time(run):
    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)
        gate = asyncio.Event()

        async def wait(name: str) -> None:
            await gate.wait()

        triton.behave = wait
        answer = asyncio.create_task(asked(queue, "a"))
        await until(lambda: triton.seen == ["a"])
        double = Work(queue.name, 1, time.time() + 20, MODEL).packed(request("a"))
        await queue._js.publish(subjects.work("default", MODEL), double)
        await asyncio.sleep(0.2)
        gate.set()
        assert await answer == "a"
        await until_empty(queue)
        assert triton.seen == ["a"]

    run(test)


def test_work_that_the_queue_delivers_again_while_it_runs_runs_once(run, quick, monkeypatch):
    """For example because the reports of its progress were lost; it stays in the queue until it is answered."""
    monkeypatch.setattr(runner, "REPORT_S", 100)

    async def test(cluster: Cluster) -> None:
        queue, (sidecar, triton) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)
        gate = asyncio.Event()

        async def wait(name: str) -> None:
            await gate.wait()

        triton.behave = wait
        answer = asyncio.create_task(asked(queue, "a"))
        await until(lambda: bool(sidecar._runner._open))
        (current,) = sidecar._runner._open.values()
        first = current.receipt
        await until(lambda: current.receipt != first)
        assert await left_in_stream(queue) == 1
        gate.set()
        assert await answer == "a"
        await until_empty(queue)
        assert triton.seen == ["a"]

    run(test)


def test_a_request_without_workers_passes_its_deadline_and_leaves_the_queue(run):
    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway()
        with pytest.raises(DeadlinePassed, match="not answered within 1 s"):
            await asked(queue, "a", seconds=1)
        await until_empty(queue)

    run(test)


def test_a_request_whose_deadline_has_passed_is_not_run(run):
    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)
        late = Work(queue.name, 10**6, time.time() - 1, MODEL).packed(request("late"))
        await asked(queue, "a")
        await queue._js.publish(subjects.work("default", MODEL), late)
        await until_empty(queue)
        assert triton.seen == ["a"]

    run(test)


def test_a_request_of_a_gateway_that_is_gone_is_not_run(run, monkeypatch):
    monkeypatch.setattr(runner, "GATEWAY_S", 0.5)

    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)
        await asked(queue, "a")
        await asyncio.sleep(0.6)
        orphan = Work("gone", 1, time.time() + 100, MODEL).packed(request("orphan"))
        await queue._js.publish(subjects.work("default", MODEL), orphan)
        await until_empty(queue)
        assert triton.seen == ["a"]

    run(test)


def test_a_cancelled_request_leaves_the_queue_or_is_no_longer_computed(run):
    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway()
        waiting = asyncio.create_task(asked(queue, "waiting"))
        while not await left_in_stream(queue):
            await asyncio.sleep(0.02)
        waiting.cancel()
        await until_empty(queue)
        sidecar, triton = await cluster.worker("w")
        await served(queue)
        gate = asyncio.Event()

        async def wait(name: str) -> None:
            await gate.wait()

        triton.behave = wait
        running = asyncio.create_task(asked(queue, "running"))
        await until(lambda: triton.seen == ["running"])
        (current,) = sidecar._runner._open.values()
        running.cancel()
        await until(lambda: current.was_withdrawn)
        gate.set()
        await until_empty(queue)

    run(test)


def test_a_full_queue_refuses_with_a_time_to_retry(run):
    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway(queue_max_messages=3)
        waiting = [asyncio.create_task(asked(queue, str(i))) for i in range(3)]
        while await left_in_stream(queue) != 3:
            await asyncio.sleep(0.02)
        with pytest.raises(BusyError, match="the queue is full") as refused:
            await asked(queue, "too many")
        assert refused.value.retry_after_s
        await cluster.worker("w", queue_max_messages=3)
        assert await asyncio.gather(*waiting) == ["0", "1", "2"]

    run(test)


def test_a_busy_triton_gets_the_request_again_later(run):
    async def test(cluster: Cluster) -> None:
        queue, (_, triton) = await cluster.gateway(), await cluster.worker("w")
        await served(queue)

        async def busy_once(name: str) -> Response | None:
            return (
                Response(14, "in ensemble 't__m', [busy retry=5] 512 requests", b"") if len(triton.seen) == 1 else None
            )

        triton.behave = busy_once
        assert await asked(queue, "a") == "a"
        assert triton.seen == ["a", "a"]

    run(test)


def test_requests_of_a_triton_that_died_are_answered_elsewhere(run):
    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway()
        workers = [await cluster.worker(name) for name in ("w0", "w1")]
        await served(queue, 2)
        has_died = []

        async def die_once(name: str) -> Response | None:
            if not has_died:
                has_died.append(name)
                return DIED
            return None

        for _, triton in workers:
            triton.behave = die_once
        assert await asyncio.gather(*(asked(queue, str(i)) for i in range(10))) == [str(i) for i in range(10)]
        await until_empty(queue)

    run(test)


def test_a_request_that_ends_two_tritons_is_put_aside_and_its_neighbours_are_answered(run):
    async def test(cluster: Cluster) -> None:
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

    run(test)


def test_questions_are_answered_by_any_worker(run):
    async def test(cluster: Cluster) -> None:
        queue = await cluster.gateway()
        with pytest.raises(Unreachable, match="no worker of pool default"):
            await queue.questions.ask("default", "ServerMetadata", b"", 1)
        await cluster.worker("w")
        await served(queue)
        answer, body = await queue.questions.ask("default", "ServerMetadata", b"", 5)
        assert (answer.worker, body) == ("w", b"ServerMetadata of w")

    run(test)


def test_the_answer_names_its_worker(run):
    async def test(cluster: Cluster) -> None:
        queue, _ = await cluster.gateway(), await cluster.worker("w7")
        await served(queue)
        answer, _ = await queue.submit("default", MODEL, request("a"), 5)
        assert isinstance(answer, Answer)
        assert (answer.worker, answer.num_parts) == ("w7", 1)

    run(test)
