"""Requests, responses and heartbeats that are not what they say harm nobody else."""

import asyncio
import time
from types import SimpleNamespace

import msgpack
import pytest
from tritonclient.grpc import service_pb2

from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.gateway.requests import MAX_PARTS, Request, Requests
from sie_triton.cluster.messages import VERSION, Answer
from sie_triton.cluster.policies.quantum import MIN_OPEN, WINDOW, Quantum
from sie_triton.cluster.sidecar.joining import NotJoinable, joined, key_of, split
from sie_triton.cluster.sidecar.triton import Response
from sie_triton.cluster.workers import Workers
from sie_triton.errors import SettingsError
from sie_triton.settings import read_settings
from tests.support.joined import TRACE, add, elements_of, request, respond
from tests.support.joiners import Clients, all_ran, of_all_items


def lying(shape, *texts):
    made = request(*texts)
    made.inputs[0].shape[0] = shape
    return made


def test_a_wrong_shape_gives_nobody_the_result_of_another_client():
    """[attacker: says 2, sends 1] [victim] [attacker: says 1, sends 2]: the sum is right, so that Triton takes it."""
    requests = [lying(2, b"x"), request(b"secret"), lying(1, b"y", b"z")]
    keys = [key_of(each) for each in requests]
    if keys[0] is None or len(set(keys)) > 1:
        return
    whole = joined(requests)
    assert len(elements_of(whole)) == whole.inputs[0].shape[0] == 4
    parts = split(respond(whole), requests)
    assert respond(request(b"secret")).raw_output_contents[0] not in parts[0].raw_output_contents[0]
    assert parts[1] == respond(request(b"secret"))


def test_a_negative_number_of_items_is_not_joined():
    assert key_of(lying(-1, b"x")) is None


def test_an_input_without_a_shape_spoils_no_other_request():
    async def check():
        clients = Clients()
        [running] = await clients.occupy()
        good = request(b"a", inputs={"image": [b"1"]})
        bad = request(b"b", inputs={"image": [b"2"]})
        bad.inputs[0].ClearField("shape")
        tasks = [clients.send_message(each) for each in (good, bad)]
        await clients.waiting(*tasks)
        running.answer()
        await all_ran()
        while len(clients.triton.calls) > 1 and not all(t.done() for t in tasks):
            clients.triton.calls[-1].answer()
            await all_ran()
        assert not tasks[0].cancelled()

    asyncio.run(check())


def test_a_recorded_trace_with_another_flag_is_not_joined():
    assert key_of(request(b"a", traceparent=f"{TRACE}-03")) is None


def test_a_slow_triton_gets_few_requests_at_last():
    quantum = Quantum(50)
    for _ in range(100 * WINDOW):
        quantum.add(1e6, True)
    assert quantum.limit == MIN_OPEN


@pytest.mark.parametrize("name", ["a.b", "a b", ">", "*", "a" * 100])
@pytest.mark.parametrize("setting", ["pool", "worker_id"])
def test_names_that_are_no_part_of_a_subject_are_refused(name, setting, tmp_path):
    with pytest.raises(SettingsError):
        read_settings(data_dir=tmp_path, **{setting: name})


def test_a_request_for_classes_is_not_joined():
    one = request(b"a")
    one.outputs.add(name="scores").parameters["classification"].int64_param = 2
    assert key_of(one) is None


def test_a_request_for_shared_memory_is_not_joined():
    one = request(b"a")
    one.outputs.add(name="scores").parameters["shared_memory_region"].string_param = "r"
    assert key_of(one) is None


def test_a_heartbeat_of_wrong_types_is_ignored():
    head = msgpack.packb((VERSION, ["a"], ["p"], "", True, [], [], {}, 0, 0, 9, [], ""))
    asyncio.run(Workers().hear(SimpleNamespace(data=len(head).to_bytes(4, "little") + head)))


@pytest.mark.parametrize(
    ("receipt", "is_taken"),
    [
        ("$JS.ACK.SIE_WORK_p.m.1.2.3.4.5", True),
        ("$JS.ACK._.hash.SIE_WORK_p.m=2E5.1.2.3.4.5.aB9", True),
        ("$JS.ACK.hub.hash.SIE_WORK_p.m.1.2.3.4.5", True),
        ("$JS.ACK.a b.hash.SIE_WORK_p.m.1.2.3.4.5", False),
        ("$JS.ACK.SIE_WORK_p.m.1.2.3.4.5\r\nPUB sie.x 0", False),
        ("$JS.ACK.SIE_WORK_p.m.1.2.3.4.5\n", False),
        ("$JS.ACK.SIE_WORK_p.*.1.2.3.4.5", False),
        ("$JS.ACK.SIE_WORK_p.m.1.2.3.4.5.>", False),
        ("$JS.ACK.*.hash.SIE_WORK_p.m.1.2.3.4.5", False),
        ("$JS.ACK.SIE_WORK_p..1.2.3.4.5", False),
        ("$JS.ACK.SIE_WORK_p.m.1.2.3.4", False),
        ("$JS.ACK.SIE_WORK_p.m.1.2.3.4.5.", False),
        ("$JS.ACK.KV_SIE_LEASES.m.1.2.3.4.5", False),
        ("$JS.ACK.SIE_WORK_p.\ud800.1.2.3.4.5", False),
        ("$JS.ACK.SIE_WORK_p." + "a" * 10_000 + ".1.2.3.4.5", False),
        ("$JS.ACK.a", False),
        ("sie.cancel.p", False),
        ("", False),
    ],
)
def test_a_gateway_deletes_answered_work_and_publishes_to_nothing_that_a_worker_names(receipt, is_taken):
    published = []

    async def publish(subject, data=b""):
        published.append((subject, data))

    requests = Requests(SimpleNamespace(publish=publish), None, "g", time.time, Pools("p"), None)
    head = msgpack.packb((VERSION, 1, "w", 0, "", 0.0, receipt, 0, 1), unicode_errors="surrogatepass")
    asyncio.run(requests.take(SimpleNamespace(data=len(head).to_bytes(4, "little") + head)))
    deleted = ("$JS.API.STREAM.MSG.DELETE.SIE_WORK_p", b'{"seq": 2, "no_erase": true}')
    assert published == [deleted] * is_taken


@pytest.mark.parametrize(("part", "num_parts"), [(0, MAX_PARTS + 1), (0, 2**62), (1, 1), (-1, 1), (0, 0)])
def test_a_part_that_no_answer_can_have_is_not_kept(part, num_parts):
    waiting = Request(1, "p", "m", b"", None)
    assert waiting.joined(Answer(1, "w", part=part, num_parts=num_parts), b"x") is None
    assert waiting.parts == {}


def test_requests_that_wait_are_not_joined_after_a_failed_split():
    async def check():
        clients = Clients(max_requests=2)
        [running] = await clients.occupy()
        tasks = [clients.send(b"%d" % n) for n in range(6)]
        await clients.waiting(*tasks)
        running.answer()
        sizes = []
        while not all(t.done() for t in tasks):
            call = await clients.triton.next()
            sizes.append(len(call.texts))
            call.answer(Response(0, "", of_all_items()) if len(call.texts) > 1 else None)
            await all_ran()
        assert sizes == [2, 1, 1, 1, 1, 1, 1]

    asyncio.run(check())


def test_nothing_stays_of_requests_that_were_cancelled():
    async def check():
        clients = Clients()
        [running] = await clients.occupy()
        task = clients.send(b"a")
        await all_ran()
        task.cancel()
        await all_ran()
        running.answer()
        await all_ran()
        assert clients.joiner._lines == {}

    asyncio.run(check())


def test_cancelled_requests_are_not_repeated():
    async def check():
        clients = Clients()
        [running] = await clients.occupy()
        tasks = [clients.send(t) for t in (b"a", b"bad", b"c")]
        await all_ran()
        running.answer()
        call = await clients.triton.next()
        tasks[0].cancel()
        await all_ran()
        call.answer()
        await all_ran()
        assert clients.triton.calls[-1].texts != [b"a"]

    asyncio.run(check())


def test_a_tensor_with_too_few_bytes_is_not_split():
    response = service_pb2.ModelInferResponse()
    add(response, "dense", "FP32", [3, 1], bytes(14))
    with pytest.raises(NotJoinable):
        split(response, [request(b"a", b"b"), request(b"c")])


def test_a_recorded_trace_in_another_case_is_not_joined():
    one = request(b"a")
    one.parameters["Traceparent"].string_param = f"{TRACE}-01"
    assert key_of(one) is None


def test_typed_contents_beside_raw_ones_are_not_joined():
    one = request(b"a")
    one.inputs[0].contents.bytes_contents.append(b"b")
    assert key_of(one) is None
