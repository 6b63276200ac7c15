"""Messages of a cluster: what gateways, sidecars and the config service read from the queue."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.gateway.requests import Request
from sie_triton.cluster.messages import (
    VERSION,
    Answer,
    Cancel,
    Header,
    Health,
    Lease,
    Malformed,
    Question,
    Wanted,
    Work,
    read_lease,
)
from sie_triton.cluster.model_files import ModelFile, Version, key, of_pool, reader
from sie_triton.cluster.policies.leases import best_pool
from sie_triton.cluster.policies.placement import may_claim, order, should_help
from sie_triton.cluster.sidecar.placing import _holders
from sie_triton.errors import SIEError
from tests.fuzz.damage import damaged
from tests.fuzz.target import Target
from tests.fuzz.trees import changed, to_json, to_msgpack

HEALTH = Health(
    *(
        "w",
        "p",
        "l4",
        True,
        ["m", "org__m"],
        ["m-score"],
        {"m": [5, 1.5], "x": [7, 0]},
        9,
        1,
        10,
        ["m"],
        "L4",
        3,
        ["r"],
        "q",
    )
)
LEASE = Lease("eval", "p", {"l4": 1}, {"l4": 2}, 0, 5.0, 6.0)
MESSAGES: tuple[Header, ...] = (
    Work("gateway-1", 5, 1e9, "org__m", 1, "payloads/5/g.1", "tenant"),
    Answer(5, "w", 3, "[input] text: wrong", 1.5, "$JS.ACK.SIE_WORK_p.m.1.2.3.4.5", 0, 2),
    Question("ModelConfig"),
    Cancel("gateway-1", 5),
    Wanted("org__m", 7),
    HEALTH,
    LEASE,
    Version("org/m", "", "config", 1.0, "key"),
)


@contextmanager
def messages(directory: Path) -> Iterator[Target]:
    heads = [[VERSION, *astuple(each)] for each in MESSAGES]
    as_messages = st.builds(with_size, changed(heads).map(to_msgpack), st.just(b"sie_id: org/m\n"))
    kinds = st.integers(0, len(MESSAGES) - 1)
    cases = st.tuples(kinds, st.one_of(as_messages, as_messages, damaged([each.packed(b"body") for each in MESSAGES])))
    yield Target(cases, lambda case: read_message(*case), (Malformed,))


def with_size(head: bytes, body: bytes) -> bytes:
    return len(head).to_bytes(4, "little") + head + body


def read_message(kind: int, data: bytes) -> None:
    """Read bytes as one kind of message, or as that which they are, and use what they say."""
    for each in (type(MESSAGES[kind]), *map(type, MESSAGES)):
        try:
            header, body = each.read(data)
        except Malformed:
            continue
        header.packed(body)
        USES.get(each, lambda header, body: None)(header, body)


def use_health(health: Any, _: bytes) -> None:
    """Let gateways and sidecars take a heartbeat."""
    pools = Pools("p", ["l4"], ["q"])
    for each in (HEALTH, health):
        pools.workers.take(each)
    pools.workers.pools()
    workers = [*pools.workers.all()]
    for pool in pools.workers.pools():
        for question in (pools.model_of, pools.window, pools.is_served, pools.is_claimed):
            asked(question, pool, "m")
    asked(pools.chosen, {"x-sie-machine-profile": health.profile})
    asked(pools.chosen, {"x-sie-pool": health.pool, "x-sie-machine-profile": "l4"})
    pools.has_all(LEASE)
    preferred = order("m", 5, workers, {"w": ["m", "y"]})
    may_claim("w", preferred, 1.0)
    should_help(HEALTH, ["w"], 50, workers)
    best_pool(HEALTH, "p", [LEASE], workers, 7.0)
    best_pool(health, "p", [LEASE], workers, 7.0)


def asked(question: Callable[..., Any], *arguments: Any) -> None:
    try:
        question(*arguments)
    except SIEError:
        return


def use_lease(lease: Any, _: bytes) -> None:
    assert read_lease(lease.packed()) is not None
    pools = Pools("p")
    pools.workers.take(HEALTH)
    pools.has_all(lease)
    best_pool(HEALTH, "p", [lease, LEASE], [HEALTH], time.time())


def use_version(version: Any, body: bytes) -> None:
    file = reader({"config"})(version.packed(body))
    if file is not None:
        asked(key, version.pool, version.model)
        of_pool({"a": file, "b": ModelFile(MESSAGES[-1], b"x")}, "p")  # type: ignore[arg-type]
        assert len(file.digest) == 64


def use_answer(answer: Any, body: bytes) -> None:
    waiting = Request(1, "p", "m", b"", None)  # type: ignore[arg-type]
    waiting.joined(answer, body)
    first = next(Answer(5, "w").parts(b"x" * 40_000, 20_000))
    waiting.joined(*Answer.read(first))


USES: dict[type, Callable[[Any, bytes], None]] = {
    Health: use_health,
    Lease: use_lease,
    Version: use_version,
    Answer: use_answer,
}


@contextmanager
def claims(directory: Path) -> Iterator[Target]:
    listed = [["w0", "w1"], []]
    yield Target(st.one_of(changed(listed).map(to_json), damaged([to_json(listed[0])])), _holders)
