"""Parts of a cluster that end, stop or drain under load: what was accepted is answered, and answered once."""

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from benchmarks.ports import free_ports
from sie_triton.cluster import subjects
from sie_triton.cluster.sidecar import sidecar as sidecar_module
from sie_triton.cluster.sidecar.run import probes
from sie_triton.records.calls import CallBook
from tests.process.cluster.conftest import MODEL, OTHER, Cluster, asked, in_cluster, served, until, until_empty

# A worker that is silent loses its work soon.
QUICK = {"ack_wait_s": 1.0, "report_s": 0.2}


class Load:
    """Clients that ask without a pause; each compares its answers with what it asked for."""

    def __init__(self, *queues) -> None:
        self.num_answers = 0
        self.failures = []
        self._is_over = False
        self._clients = [asyncio.create_task(self._ask(queues[i % len(queues)], i)) for i in range(8)]

    async def _ask(self, queue, client: int) -> None:
        number = 0
        while not self._is_over:
            name = f"{client}-{number}"
            number += 1
            try:
                assert await asked(queue, name, (MODEL, OTHER)[number % 2], 30) == name
                self.num_answers += 1
            except Exception as exc:
                self.failures.append(f"{type(exc).__name__}: {exc}")

    async def more(self, number: int) -> None:
        """Return once so many more requests have been answered."""
        wanted = self.num_answers + number
        await until(lambda: self.num_answers >= wanted)

    async def end(self) -> list[str]:
        self._is_over = True
        await asyncio.gather(*self._clients)
        return self.failures


async def started(cluster: Cluster, num_gateways: int = 1):
    queues = [await cluster.gateway() for _ in range(num_gateways)]
    workers = [await cluster.worker(name) for name in ("w0", "w1", "w2")]
    for _, triton in workers:
        triton.take(0.005)
    for queue in queues:
        await served(queue, 3)
    return queues, workers


@in_cluster(**QUICK)
async def test_a_queue_that_is_killed_and_comes_back_loses_nothing(cluster):
    queues, _ = await started(cluster, 2)
    load = Load(*queues)
    for _ in range(2):
        await load.more(50)
        cluster.server.kill()
        cluster.server.start()
    await load.more(50)
    assert await load.end() == []


class Wire:
    """Forwards bytes between a client and nats-server; while it is cut, none come through, in both directions.

    While it is deaf, none come to the client.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_cut = self.is_deaf = False

    async def __aenter__(self) -> "Wire":
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._port)
        sent = self._forward(reader, other_writer, lambda: self.is_cut)
        await asyncio.gather(sent, self._forward(other_reader, writer, lambda: self.is_cut or self.is_deaf))

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_held: Callable[[], bool]
    ) -> None:
        while data := await reader.read(64 * 1024):
            while is_held():
                await asyncio.sleep(0.02)
            writer.write(data)
        writer.close()


@in_cluster(**QUICK, ping_s=0.5)
async def test_a_worker_whose_network_is_cut_is_replaced_and_comes_back(cluster):
    async with Wire(cluster.server.port) as wire:
        queue = await cluster.gateway()
        _, triton = await cluster.worker("far", nats_url=wire.url)
        triton.take(0.005)
        await served(queue)
        load = Load(queue)
        await load.more(50)
        near, _ = await cluster.worker("near")
        await served(queue, 2)
        wire.is_cut = True
        await load.more(100)
        await until(lambda: [each.worker for each in queue.pools.workers.alive("default")] == ["near"])
        wire.is_cut = False
        await until(lambda: len(queue.pools.workers.alive("default")) == 2)
        await near.drain()
        assert near._runner.num_open == 0
        await load.more(100)
        assert await load.end() == []


@pytest.mark.parametrize("is_confirmed", [True, False])
@in_cluster(**QUICK, ping_s=0.2, gateway_gone_s=1.0, own_silence_s=0.8)
async def test_requests_of_a_gateway_whose_network_was_cut_are_answered(cluster, is_confirmed):
    """Its workers take it for gone and drop its work, so it sends the requests that wait again."""
    async with Wire(cluster.server.port) as wire:
        queue, operator = await cluster.gateway(nats_url=wire.url), await cluster.operator()
        _, triton = await cluster.worker("near")
        await served(queue)
        may_answer = triton.hold()
        wire.is_deaf = not is_confirmed
        asking = [asyncio.create_task(asked(queue, name)) for name in ("a", "b", "c")]
        await until(lambda: len(triton.seen) == 3)
        if is_confirmed:
            await until(lambda: all(each.stored.done() for each in queue.requests._waiting.values()))
        wire.is_cut = True
        may_answer.set()
        await until(lambda: not queue.is_connected)
        while (await operator.stream_info(subjects.stream("default"))).state.messages:  # they are dropped
            await asyncio.sleep(0.02)
        wire.is_cut = wire.is_deaf = False
        assert await asyncio.gather(*asking) == ["a", "b", "c"]


@in_cluster(**QUICK, ping_s=0.2, own_silence_s=0.8)
async def test_requests_that_were_sent_again_are_withdrawn_once_they_are_answered(cluster, monkeypatch):
    """Else each of them would be computed twice; what a worker had fetched by then is."""
    async with Wire(cluster.server.port) as wire:
        queue, (_, triton) = await cluster.gateway(nats_url=wire.url), await cluster.worker("near")
        await served(queue)
        triton.ready = False
        await until(lambda: not any(each.is_ready for each in queue.pools.workers.alive("default")))
        names, withdrawn, withdraw = [str(i) for i in range(20)], [], queue.requests._withdraw
        monkeypatch.setattr(queue.requests, "_withdraw", lambda each: withdrawn.append(each.number) or withdraw(each))
        asking = [asyncio.create_task(asked(queue, name)) for name in names]
        await until(lambda: sum(each.stored.done() for each in queue.requests._waiting.values()) == len(names))
        wire.is_cut = True
        await until(lambda: time.monotonic() - queue._heard_at > 1.0 and not queue.is_connected)
        wire.is_cut = False
        waiting = queue.requests._waiting.values()
        await until(lambda: all(each.num_messages == 2 and each.stored.done() for each in waiting))
        triton.ready = True
        assert sorted(await asyncio.gather(*asking)) == sorted(names)
        await until_empty(queue)
        assert sorted(withdrawn) == list(range(1, len(names) + 1))


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@in_cluster(**QUICK, confirm_s=0.1)
async def test_a_request_that_the_queue_confirms_late_is_computed_once(cluster, monkeypatch, is_killed):
    queue, _, triton = await cluster.pair()
    sent, publish = [], queue._nats.publish

    async def counted(subject: str, data: bytes, **more: object):
        sent.extend([data] if subject == subjects.work("default", MODEL) else [])
        await publish(subject, data, **more)

    monkeypatch.setattr(queue._nats, "publish", counted)
    if is_killed:
        cluster.server.kill()
        await until(lambda: not queue.is_connected)
    else:
        cluster.server.stop()
    names = [str(i) for i in range(5)]
    asking = [asyncio.create_task(asked(queue, name)) for name in names]
    if not is_killed:
        # On a slow machine the gateway may notice first that the queue is away; then it sends nothing more.
        await until(lambda: len(sent) >= 3 * len(names) or not queue.is_connected)
    cluster.server.start() if is_killed else cluster.server.go_on()
    assert await asyncio.gather(*asking) == names
    await until_empty(queue)
    assert sorted(triton.seen) == names


@in_cluster(**QUICK, restart_s=0.05)
async def test_a_sidecar_goes_on_after_an_error_of_its_disk(cluster, monkeypatch):
    queue, sidecar, _ = await cluster.pair()
    failures = iter([OSError(errno.ENOSPC, "no space"), OSError(errno.EMFILE, "no handles")])

    def made_anew(directory: Path) -> CallBook:
        for failure in failures:
            raise failure
        return CallBook(directory)

    monkeypatch.setattr(sidecar_module, "CallBook", made_anew)
    sidecar._server.calls._path.unlink()
    await until(lambda: sidecar._server.calls.is_there)
    lived_at = sidecar._lived_at
    await until(lambda: sidecar._lived_at > lived_at)
    assert await asked(queue, "a") == "a"


@in_cluster(**QUICK)
async def test_a_sidecar_without_heartbeats_is_reported_as_dead(cluster):
    (port,) = free_ports(1)
    sidecar, _ = await cluster.worker("w")
    settings = cluster.settings(worker_metrics_port=port)
    async with probes(sidecar, settings), httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
        monotonic = time.monotonic
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sidecar_module, "monotonic", lambda: monotonic() + 31)
            sidecar._lived_at = monotonic()
            answer = await client.get(f"http://127.0.0.1:{port}/healthz")
        assert (answer.status_code, answer.text) == (503, "no heartbeat\n")


@in_cluster(**QUICK)
async def test_what_somebody_deletes_in_the_queue_is_made_again(cluster):
    """What was in a deleted stream has to be asked again by the gateways' clients; later requests are answered."""
    queues, _ = await started(cluster)
    operator, load = await cluster.operator(), Load(*queues)
    await load.more(50)
    await operator.delete_consumer(subjects.stream("default"), subjects.token(MODEL))
    await load.more(100)
    assert await load.end() == []
    await operator.delete_key_value(subjects.claims("default"))
    for model in (OTHER, MODEL):
        assert await asked(queues[0], "after", model) == "after"
    await operator.delete_stream(subjects.stream("default"))
    assert await asked(queues[0], "at last") == "at last"
