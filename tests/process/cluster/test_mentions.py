"""A known model that no worker serves: one of them begins to serve it once a request names it."""

import asyncio
from contextlib import suppress

import pytest
from tritonclient.grpc import service_pb2

from sie_triton.client.failures import NotServed
from sie_triton.cluster.gateway.backend import QueueBackend
from sie_triton.errors import BusyError, ModelLoading, Unreachable
from tests.process.cluster.conftest import MODEL, Cluster, asked, in_cluster, model_file, served, until

KNOWN = "org__known"


async def two_workers(cluster: Cluster):
    """Return a gateway, and the doubles of two servers that know a model."""
    queue = await cluster.gateway()
    for name in ("a", "b"):
        await cluster.worker(name)
        cluster.servers[name].known.add(KNOWN)
    await served(queue, 2)
    await until(lambda: queue.pools.is_served("default", MODEL))
    queue.pools._heard_since -= 60  # all workers have told about themselves
    return queue, cluster.servers["a"], cluster.servers["b"]


@in_cluster()
async def test_a_known_model_is_served_by_one_worker(cluster):
    queue, a, b = await two_workers(cluster)
    found = await asyncio.gather(*(queue.questions.model_of("default", KNOWN) for _ in range(20)))
    assert found == [KNOWN] * 20
    assert a.asked + b.asked == [KNOWN]
    assert await queue.questions.model_of("default", f"{KNOWN}-score") == KNOWN
    for name in ("x", "y"):
        assert await asked(queue, name, KNOWN) == name
    serving = a if a.asked else b
    assert serving.triton.seen == ["x", "y"]
    about = service_pb2.ModelMetadataRequest(name=KNOWN).SerializeToString()
    for _ in range(20):  # questions about it go to the worker that serves it
        answer, _ = await queue.questions.ask("default", "ModelMetadata", about, 5)
        assert answer.status == 0, answer.text


@in_cluster()
async def test_a_question_about_a_known_model_has_it_served_by_the_worker_with_the_most_room(cluster):
    queue, a, b = await two_workers(cluster)
    a.triton.limit_bytes = 20_000
    await until(lambda: max(each.free_bytes for each in queue.pools.workers.alive("default")) > 10_000)
    request = service_pb2.ModelConfigRequest(name=KNOWN).SerializeToString()
    answer, _ = await queue.questions.ask("default", "ModelConfig", request, 5)
    assert answer.status == 0, answer.text
    assert (a.asked, b.asked) == ([KNOWN], [])


@in_cluster()
async def test_an_unknown_name_is_asked_for_once_and_a_hostile_one_never(cluster):
    queue, a, b = await two_workers(cluster)
    for name in ("org__never", "org__never-score", "../../x", "a b", "*", "a?b", "x" * 300, "größe"):
        for _ in range(3):
            assert await queue.questions.model_of("default", name) == ""
    assert a.asked + b.asked == ["org__never"]


@in_cluster()
async def test_questions_about_a_step_go_where_those_about_its_model_went(cluster):
    """Each worker has names of its own for the steps of models that came while it ran."""
    queue, a, b = await two_workers(cluster)
    for server, revision in ((a, 2), (b, 7)):
        server.triton.further |= {"t__new", f"t__new@{revision}-preprocess"}
    await until(lambda: all("t__new" in each.models for each in queue.pools.workers.alive("default")))
    told, steps = set(), []
    for name in ("t__new", "t__new@2-preprocess", "t__new@7-preprocess"):
        request = service_pb2.ModelConfigRequest(name=name).SerializeToString()
        for _ in range(10):
            with suppress(Unreachable):
                answer, _ = await queue.questions.ask("default", "ModelConfig", request, 5)
                if answer.status == 0:  # else its worker was not heard of for a moment
                    told.add(answer.worker)
                    steps.append(name)
    assert len(told) == 1
    assert len(steps) == 20  # of the model and of its steps at that worker; the others are to be asked for again


@in_cluster()
async def test_calls_of_a_model_that_workers_have_not_got_yet_are_to_be_retried(cluster):
    """Calls of each verb, and calls with a profile, which ask about the model first."""
    queue, _, _ = await two_workers(cluster)
    for server in cluster.servers.values():
        server.answers[model_file("org/new")] = 503, "busy; retry"
    _, config = await cluster.config()
    answer = await config.request("POST", "/v1/configs/models", data=model_file("org/new"))
    assert answer.status == 201
    await until(lambda: queue.model_files.epoch == 1)
    backend = QueueBackend(cluster.settings(), queue)
    for call in (
        backend.encode("org/new", ["a"], 5, {}),
        backend.encode("org/new:fast", ["a"], 5, {}),
        backend.score("org/new", "q", ["a"], 5, {}),
        backend.extract("org/new", ["a"], ["b"], None, 5, {}),
        backend.ask("is_model_ready", model_name="org__new-score"),
    ):
        with pytest.raises(Unreachable, match="has got the model file of org__new"):
            await call
    with pytest.raises(NotServed):
        await backend.encode("org/never:fast", ["a"], 5, {})
    request = service_pb2.ModelConfigRequest(name="org__new-preprocess").SerializeToString()
    with pytest.raises(Unreachable, match="has got the model file of org__new yet; retry"):
        await queue.questions.ask("default", "ModelConfig", request, 5)


@in_cluster()
async def test_a_known_model_waits_for_workers_whose_triton_is_started_anew(cluster):
    queue, a, b = await two_workers(cluster)
    a.triton.ready = b.triton.ready = False
    await until(lambda: not any(each.is_ready for each in queue.pools.workers.alive("default")))
    with pytest.raises(Unreachable, match="no worker of pool default is ready; retry"):
        await queue.questions.model_of("default", KNOWN)


@in_cluster()
async def test_a_known_model_that_was_removed_does_not_come_back_by_a_request(cluster):
    queue, a, b = await two_workers(cluster)
    _, config = await cluster.config()
    for method, path in (("POST", ""), ("DELETE", "/org/known")):
        answer = await config.request(method, f"/v1/configs/models{path}", data=model_file("org/known"))
        assert answer.status in (200, 201)
    await until(lambda: queue.pools.is_removed("default", KNOWN))
    for name in (KNOWN, f"{KNOWN}-score"):
        assert await queue.questions.model_of("default", name) == ""
    assert a.asked + b.asked == []


@in_cluster(served_heartbeat_s=0.3, unknown_s=0)
async def test_a_model_without_room_yet_is_loading(cluster):
    queue, a, b = await two_workers(cluster)

    async def full(model: str) -> tuple[int, str]:
        return 503, "org/known is not served yet: 5 other models wait; retry"

    a.serve_known = b.serve_known = full
    with pytest.raises(ModelLoading, match="other models wait"):
        await queue.questions.model_of("default", KNOWN)

    async def away(model: str) -> tuple[int, str]:
        raise TimeoutError

    a.serve_known = b.serve_known = away
    with pytest.raises(ModelLoading, match="controller does not answer"):
        await queue.questions.model_of("default", KNOWN)

    async def forgetful(model: str) -> tuple[int, str]:
        return 200, ""

    a.serve_known = b.serve_known = forgetful
    with pytest.raises(ModelLoading, match="not in service"):
        await queue.questions.model_of("default", KNOWN)

    async def gone(model: str) -> tuple[int, str]:
        raise OSError("connection refused")

    a.serve_known = b.serve_known = gone  # the controller is being started anew
    with pytest.raises(ModelLoading, match="controller does not answer"):
        await queue.questions.model_of("default", KNOWN)
    a.found = b.found = lambda: None  # a Triton without a controller
    assert await queue.questions.model_of("default", KNOWN) == ""


@in_cluster(max_mentions=3)
async def test_many_names_at_a_time_are_refused(cluster):
    queue, a, b = await two_workers(cluster)
    may_end = asyncio.Event()

    async def slow(model: str) -> tuple[int, str]:
        await may_end.wait()
        return 404, "unknown"

    a.serve_known = b.serve_known = slow
    waiting = [asyncio.create_task(queue.questions.model_of("default", f"org__{i}")) for i in range(3)]
    await asyncio.sleep(0.1)
    with pytest.raises(BusyError, match="3 other known models"):
        await queue.questions.model_of("default", "org__3")
    assert await queue.questions.model_of("default", MODEL) == MODEL
    may_end.set()
    assert await asyncio.gather(*waiting) == ["", "", ""]


@in_cluster()
async def test_a_client_that_leaves_does_not_end_the_question_of_others(cluster):
    queue, a, b = await two_workers(cluster)
    may_end = asyncio.Event()

    async def slow(model: str) -> tuple[int, str]:
        await may_end.wait()
        return await type(a).serve_known(a, model)

    a.serve_known = b.serve_known = slow
    first, second = (asyncio.create_task(queue.questions.model_of("default", KNOWN)) for _ in range(2))
    await asyncio.sleep(0.1)
    first.cancel()
    may_end.set()
    assert await second == KNOWN
