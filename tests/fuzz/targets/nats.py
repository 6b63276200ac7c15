"""Users of NATS by role: what a gateway's or a sidecar's password does to the streams and to other parts."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import BadRequestError

from sie_triton.cluster.connection import OwnJetStream, connect, listen
from sie_triton.cluster.messages import Answer, Cancel, Header, Lease, Malformed, Work, clock_in
from sie_triton.cluster.model_files import ALL_POOLS, ModelFile, Version
from sie_triton.cluster.permissions import CONFIG, GATEWAY, OPERATOR, SIDECAR
from sie_triton.settings import read_settings
from tests.fuzz.damage import one
from tests.fuzz.target import Target
from tests.fuzz.targets.cluster import HEALTH
from tests.support.nats import NatsServer
from tests.support.nats_powers import CLAIMS, DEAD, FILES, LEASES, STREAMS, WORK, covers

SECRET = b"a secret request"

# A subject of each stream.
SUBJECTS = {WORK: "sie.work.default.m", DEAD: "sie.dead.default.m", FILES: "$KV.SIE_MODEL_FILES.=.m"}
SUBJECTS |= {LEASES: "$KV.SIE_LEASES.evil", CLAIMS: "$KV.SIE_CLAIMS_default.m"}


def _is(kind: type[Header], message: bytes) -> bool:
    with suppress(Malformed):
        return bool(kind.read(message))
    return False


def _is_claim(message: bytes) -> bool:
    with suppress(ValueError):
        return isinstance(json.loads(message), list)
    return False


# Who alone may write, what that is, and such a message, by the subject where its readers wait.
WRITERS: dict[str, tuple[str, Callable[[bytes], bool], bytes]] = {
    "$KV.SIE_MODEL_FILES.>": (
        CONFIG,
        partial(_is, Version),
        ModelFile(Version("t/m", ALL_POOLS, "sie-config", 0.0), b"evil").packed(),
    ),
    "$KV.SIE_LEASES.>": (GATEWAY, partial(_is, Lease), Lease("evil", "p", {"l4": 1}, {}, 0, 0.0, 4e9).packed()),
    "$KV.SIE_CLAIMS_default.>": (SIDECAR, _is_claim, b'["evil"]'),
    "sie.answer.g": (SIDECAR, partial(_is, Answer), Answer(1, "evil").packed()),
    "sie.health.*.*": (SIDECAR, partial(_is, type(HEALTH)), HEALTH.packed()),
    "sie.cancel.*": (GATEWAY, partial(_is, Cancel), Cancel("g", 1).packed()),
    "sie.gateway.*": (GATEWAY, lambda message: clock_in(message) is not None, b"4000000000.5"),
}

# Places for answers and deliveries: in place of these two stand the user's own inbox, and that of a follower of files.
OWN, FOLLOWERS = "OWN-INBOX", "FOLLOWERS-INBOX"
PLACES = (*SUBJECTS.values(), "sie.answer.g", "sie.health.default.w", "sie.cancel.default", "sie.gateway.g")
PLACES += ("$JS.API.STREAM.CREATE.EVIL", "$JS.API.STREAM.UPDATE.SIE_WORK_default", *[OWN] * 3, *[FOLLOWERS] * 2)

# A message: its subject, its body, and the place for an answer.
Sent = tuple[str, bytes, str]


def attacks() -> st.SearchStrategy[list[Sent]]:
    """Return a strategy of steps that bring the messages of a stream to another place, some with another body."""
    steps = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 99)), min_size=1, max_size=10)
    return st.builds(_attack, one((*STREAMS, "EVIL")), one(PLACES), one([*WRITERS]), steps)


def _attack(stream: str, place: str, of: str, steps: list[tuple[int, int]]) -> list[Sent]:
    fitting = (
        "$KV.SIE_MODEL_FILES.>" if place == FOLLOWERS else next((each for each in WRITERS if covers(each, place)), of)
    )
    found = _steps(stream, place, WRITERS[fitting][2])
    others = [b"", b"+NXT", SECRET, *(body for _, body, _ in found)]
    messages = [(found[step % len(found)], others[spoilt % len(others)], spoilt < 10) for step, spoilt in steps]
    return [
        (subject, other if is_spoilt else body, answered) for (subject, body, answered), other, is_spoilt in messages
    ]


def _steps(stream: str, place: str, evil: bytes) -> list[Sent]:
    subject = SUBJECTS.get(stream, "evil.m")
    copied = {"republish": {"src": subject, "dest": place}}
    consumer = {"deliver_policy": "all", "replay_policy": "instant", "ack_policy": "explicit"}
    named = {**consumer, "name": "c", "durable_name": "c", "filter_subject": subject}
    requests: list[tuple[str, dict[str, Any], str]] = [
        ("STREAM.CREATE.EVIL", {"name": "EVIL", "subjects": ["evil.*"], **copied}, OWN),
        ("STREAM.CREATE.EVIL", {"name": "EVIL", "sources": [{"name": stream}], **copied}, OWN),
        ("STREAM.CREATE.EVIL", {"name": "EVIL", "mirror": {"name": stream}, **copied}, OWN),
        (f"STREAM.UPDATE.{stream}", {"name": stream, "subjects": [subject], **copied}, OWN),
        (f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": {**consumer, "deliver_subject": place}}, OWN),
        (f"CONSUMER.CREATE.{stream}.c.{subject}", {"stream_name": stream, "config": named}, OWN),
        (f"CONSUMER.DURABLE.CREATE.{stream}.c", {"stream_name": stream, "config": named}, OWN),
        (f"CONSUMER.MSG.NEXT.{stream}.c", {"batch": 9, "no_wait": True}, place),
        (f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}, place),
        (f"STREAM.MSG.DELETE.{stream}", {"seq": 1}, place),
        (f"STREAM.INFO.{stream}", {"subjects_filter": ">"}, place),
        (f"DIRECT.GET.{stream}", {"last_by_subj": subject}, place),
    ]
    found = [(f"$JS.API.{words}", json.dumps(body).encode(), answered) for words, body, answered in requests] * 3
    found += [(f"$JS.ACK.{stream}.c.1.1.1.1.0", b"+NXT", place)] * 3 + [(subject, evil, "")] * 8
    return found


@contextmanager
def nats_users(directory: Path) -> Iterator[Target]:
    """Yield the target of what a gateway's and a sidecar's password can do."""
    cases = st.tuples(one([GATEWAY, SIDECAR]), attacks())
    with NatsServer(directory) as server, asyncio.Runner() as runner:
        yield Target(cases, lambda case: runner.run(_check(server, *case)))


async def _check(server: NatsServer, user: str, case: list[Sent]) -> None:
    """Publish as a user, and assert that nothing of another part was written, read or made by that."""
    written: list[str] = []
    heard: list[bytes] = []
    async with _connected(server, OPERATOR) as operator, _connected(server, user) as client:
        js = OwnJetStream(operator)
        await _make_streams(js)
        before = await _configurations(js)
        followed = await _follow(operator, js, user, written)
        own = client.new_inbox()

        async def hear(message: Msg) -> None:
            heard.append(message.data)

        await client.subscribe(own, cb=hear)
        for subject, body, place in case:
            places = {OWN: own, FOLLOWERS: followed}
            for name, inbox in places.items():
                body = body.replace(name.encode(), inbox.encode())
            await client.publish(subject, body, places.get(place, place))
        await client.flush()
        await asyncio.sleep(0.02)  # deliveries, and answers of the API
        await operator.flush()
        after = await _configurations(js)
    changed = [name for name, config in after.items() if before.get(name) != config]
    assert not changed, f"streams were made or changed: {changed}"
    assert not written, f"{user} has written to {written}"
    assert user != GATEWAY or not any(SECRET in each or b64encode(SECRET)[:16] in each for each in heard), (
        "read a request"
    )


@asynccontextmanager
async def _connected(server: NatsServer, user: str) -> AsyncIterator[Client]:
    client = await connect(server.user(read_settings(), user), user, "fuzz")
    try:
        yield client
    finally:
        await client.close()


async def _make_streams(js: JetStreamContext) -> None:
    """Make the streams, or make them again as they were, and empty them."""
    made = [StreamConfig(WORK, subjects=["sie.work.default.*"], retention=RetentionPolicy.WORK_QUEUE)]
    made += [StreamConfig(DEAD, subjects=["sie.dead.>"])]
    made += [StreamConfig(name, subjects=[f"$KV.{name[3:]}.>"]) for name in (FILES, LEASES, CLAIMS)]
    for each in await js.streams_info():
        if each.config.name not in STREAMS:
            await js.delete_stream(each.config.name or "")
    for config in made:
        name = config.name or ""
        try:
            await js.add_stream(config)
        except BadRequestError:
            await js.update_stream(config)
        for consumer in await js.consumers_info(name):
            await js.delete_consumer(name, consumer.name)
        await js.purge_stream(name)
    await js.add_consumer(
        WORK, ConsumerConfig(durable_name="c", filter_subject="sie.work.default.m", ack_policy="explicit")
    )
    await js.publish("sie.work.default.m", Work("g", 1, 4e9, "m").packed(SECRET))


async def _configurations(js: JetStreamContext) -> dict[str, Any]:
    return {each.config.name or "": each.config.as_dict() for each in await js.streams_info()}


async def _follow(client: Client, js: OwnJetStream, user: str, written: list[str]) -> str:
    """Read all that parts read, and note what the user may not write; return the inbox of a follower of model files."""
    for subject, (writer, is_written, _) in WRITERS.items():

        async def read(
            message: Msg, subject: str = subject, writer: str = writer, is_written: Any = is_written
        ) -> None:
            if writer != user and is_written(message.data):
                written.append(subject)

        if subject.startswith("$KV"):
            stream = f"KV_{subject.split('.')[1]}"
            await js.subscribe(subject, stream=stream, cb=read, ordered_consumer=True)
        else:
            await listen(client, subject, read)
    (follower,) = await js.consumers_info(FILES)
    return str(follower.config.deliver_subject)
