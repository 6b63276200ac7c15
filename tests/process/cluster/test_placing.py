"""Models stay with the workers that have them in memory, and move when their worker is gone or too slow."""

import asyncio
from collections import Counter
from itertools import product
from math import inf

from sie_triton.cluster import subjects
from sie_triton.cluster.messages import Wanted
from tests.process.cluster.conftest import MODEL, OTHER, Cluster, asked, in_cluster, served, until


async def asked_often(queue, num: int = 30, model: str = MODEL) -> None:
    await asyncio.gather(*(asked(queue, f"{model}-{i}", model) for i in range(num)))


def counts(workers) -> Counter:
    return Counter({sidecar.name: len(triton.seen) for sidecar, triton in workers if triton.seen})


def ready(workers) -> list[str]:
    return [each.worker for each in workers.alive("default") if each.is_ready]


def with_model(workers) -> list[str]:
    return [each.worker for each in workers.alive("default") if MODEL in each.resident]


@in_cluster(backlog_s=inf)
async def test_a_models_requests_go_to_the_worker_that_has_it_in_memory(cluster):
    queue = await cluster.gateway()
    workers = [await cluster.worker(name) for name in ("w0", "w1", "w2")]
    for i, (_, triton) in enumerate(workers):
        triton.resident = {MODEL} if i == 1 else {OTHER}
    await served(queue, 3)
    for sidecar, _ in workers:
        await until(lambda s=sidecar: [e.worker for e in s._workers.alive("default") if MODEL in e.resident] == ["w1"])
    await asked_often(queue)
    assert counts(workers) == {"w1": 30}


@in_cluster(backlog_s=inf)
async def test_only_one_worker_claims_a_cold_model(cluster):
    queue = await cluster.gateway()
    workers = [await cluster.worker(f"w{i}") for i in range(4)]
    for _, triton in workers:
        triton.resident = set()
    await served(queue, 4)
    for sidecar, _ in workers:  # all of them see the same
        seen = sidecar._workers
        await until(lambda seen=seen: len(ready(seen)) == len(workers) and not with_model(seen))
    await asked_often(queue)
    assert len(counts(workers)) == 1
    await until(lambda: sum(MODEL in each.claims for each in queue.pools.workers.alive("default")) == 1)


async def server_and_other(cluster: Cluster):
    """Return a gateway, the worker that serves MODEL, and another one, each with its Triton."""
    queue = await cluster.gateway()
    workers = [await cluster.worker(name) for name in ("w0", "w1")]
    await served(queue, 2)
    await asked(queue, "a")
    (first,) = counts(workers)
    return queue, *sorted(workers, key=lambda each: each[0].name != first)


@in_cluster()
async def test_another_worker_takes_the_models_of_one_that_is_gone(cluster):
    queue, gone, left = await server_and_other(cluster)
    await gone[0]._nats._close("closed", False)
    assert await asked(queue, "b") == "b"
    assert left[1].seen == ["b"]


@in_cluster()
async def test_another_worker_takes_the_models_of_one_whose_triton_is_away(cluster):
    queue, away, left = await server_and_other(cluster)
    away[1].ready = False
    await until(
        lambda: not any(each.is_ready for each in left[0]._workers.alive("default") if each.worker == away[0].name)
    )
    await until(lambda: [each.worker for each in left[0]._workers.alive("default") if each.is_ready] == [left[0].name])
    assert await asked(queue, "b") == "b"
    assert left[1].seen == ["b"]


@in_cluster()
async def test_a_worker_whose_triton_answers_slowly_is_not_taken_for_gone(cluster):
    """On full cores the names of Triton's models may take seconds."""
    queue, sidecar, triton = await cluster.pair()
    workers, heard = queue.pools.workers, []
    names, take = triton.names, workers.take
    is_asked, answers = asyncio.Event(), asyncio.Event()

    async def slow_names() -> list[str]:
        is_asked.set()
        await answers.wait()
        return await names()

    triton.names, workers.take = slow_names, lambda health: (heard.append(health), take(health))
    sidecar._look_at_names_soon()
    await is_asked.wait()
    heard.clear()
    await until(lambda: len(heard) > 6)
    assert all(health.is_ready and MODEL in health.models for health in heard)
    triton.further.add("t__new")
    answers.set()
    await until(lambda: "t__new" in heard[-1].models)


@in_cluster(backlog_s=0.1)
async def test_idle_workers_help_with_more_than_a_worker_can_do(cluster):
    queue = await cluster.gateway()
    workers = [await cluster.worker(f"w{i}") for i in range(3)]
    for sidecar, triton in workers:
        triton.take(0.2)
        sidecar._runner.pace.quantum.limit = 4
    await served(queue, 3)
    await until(lambda: all(each.limit == 4 for each in queue.pools.workers.alive("default")))
    await asked_often(queue, 200)
    assert len(counts(workers)) > 1


@in_cluster(unused_s=0.2)
async def test_a_model_without_work_and_memory_is_given_up(cluster):
    queue, sidecar, triton = await cluster.pair()
    await asked(queue, "a")
    assert sidecar._claims.mine() == [MODEL]
    triton.resident = set()
    await until(lambda: not sidecar._claims.mine())
    assert await asked(queue, "b") == "b"


@in_cluster(unused_s=0.1)
async def test_a_model_stays_while_its_request_runs_though_it_is_not_in_memory_yet(cluster):
    queue, (sidecar, triton) = await cluster.gateway(), await cluster.worker("w")
    triton.resident = set()
    await served(queue)

    triton.take(0.6)
    answer = asyncio.create_task(asked(queue, "a"))
    await until(lambda: triton.seen == ["a"])
    await asyncio.sleep(0.4)
    assert sidecar._claims.mine() == [MODEL]
    assert await answer == "a"


@in_cluster()
async def test_two_looks_at_a_time_disturb_each_other_not(cluster):
    _, sidecar, _ = await cluster.pair()
    await sidecar._claims.bucket.are_known.wait()
    placing_of, claim = sidecar._placing, sidecar._claims.claim

    async def slow_claim(*arguments) -> bool:
        await asyncio.sleep(0.05)
        return await claim(*arguments)

    sidecar._claims.claim = slow_claim
    for model in (MODEL, OTHER):
        placing_of._add_wanted(model)
    await asyncio.gather(*(placing_of._look() for _ in range(3)))
    assert sidecar._claims.mine() == [MODEL, OTHER]


@in_cluster(backlog_s=0.2)
async def test_a_lost_announcement_delays_a_request_only(cluster):
    queue, _, _ = await cluster.pair()
    queue.requests._announce = lambda pool, model: None
    assert await asked(queue, "a") == "a"


@in_cluster()
async def test_a_strange_announcement_disturbs_nobody(cluster):
    queue, _, _ = await cluster.pair()
    strange = [b"", b"x", b"\xff" * 100, Wanted("t__nothing").packed(), Wanted(7).packed()]
    heard = subjects.wanted("default"), subjects.cancelled("default"), "sie.health.default.x"
    for subject, data in product((*heard, subjects.answers(queue.name)), strange):
        await queue._nats.publish(subject, data)
    assert await asked(queue, "a") == "a"
