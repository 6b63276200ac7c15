"""Requests, responses and heartbeats that are not what they say harm nobody else."""

import asyncio
import time
from types import SimpleNamespace

import msgpack
import pytest

from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.gateway.requests import Request, Requests
from sie_triton.cluster.messages import VERSION, Answer
from sie_triton.errors import SettingsError
from sie_triton.settings import read_settings


@pytest.mark.parametrize("setting", ["pool", "worker_id"])
def test_names_that_are_no_part_of_a_subject_are_refused(setting, tmp_path):
    with pytest.raises(SettingsError):
        read_settings(data_dir=tmp_path, **{setting: "a.b"})


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

    async def take(message):
        nats = SimpleNamespace(publish=publish, new_inbox=lambda: "inbox")
        requests = Requests(nats, None, "g", time.time, Pools("p"), None)
        await requests.take(message)
        await requests.close()

    head = msgpack.packb((VERSION, 1, "w", 0, "", 0.0, receipt, 0, 1), unicode_errors="surrogatepass")
    asyncio.run(take(SimpleNamespace(data=len(head).to_bytes(4, "little") + head)))
    deleted = ("$JS.API.STREAM.MSG.DELETE.SIE_WORK_p", b'{"seq": 2, "no_erase": true}')
    assert published == [deleted] * is_taken


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"seq": "1"}',
        b'{"error": 1, "seq": "1"}',
        b'{"error": {"code": 400}, "seq": 1}',
    ],
)
def test_what_is_no_confirmation_confirms_nothing(data):
    async def run():
        requests = Requests(SimpleNamespace(new_inbox=lambda: "inbox"), None, "g", time.time, Pools("p"), None)
        answer, stored = (asyncio.get_running_loop().create_future() for _ in range(2))
        requests._unconfirmed["inbox.1"] = request = Request(1, "p", "m", b"", answer)
        request.stored = stored
        await requests.confirm(SimpleNamespace(subject="inbox.1", headers=None, data=data))
        assert (answer.done(), stored.done(), requests._unconfirmed) == (False, False, {"inbox.1": request})

    asyncio.run(run())


@pytest.mark.parametrize(("part", "num_parts"), [(0, 2101), (0, 2**62), (1, 1), (-1, 1), (0, 0)])
def test_a_part_that_no_answer_can_have_is_not_kept(part, num_parts):
    waiting = Request(1, "p", "m", b"", None)
    assert waiting.joined(Answer(1, "w", part=part, num_parts=num_parts), b"x") is None
    assert waiting.parts == {}
