"""Users of NATS, one for each part of a cluster, which may use the subjects of that part only."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sie_triton.cluster import subjects

GATEWAY, SIDECAR, CONFIG, OPERATOR = "gateway", "sidecar", "config", "operator"

# Environment variables of nats-server with the passwords of the users.
PASSWORDS = {name: f"SIE_{name.upper()}_PASSWORD" for name in (GATEWAY, SIDECAR, CONFIG, OPERATOR)}

# Streams and buckets with one kind of writer: config services, gateways, and the requests that were put aside.
MODEL_FILES, LEASES, DEAD = f"KV_{subjects.MODEL_FILES}", f"KV_{subjects.LEASES}", subjects.DEAD_STREAM


def following(stream: str) -> Sequence[str]:
    """Return the subjects of a user that follows the bucket of a stream, without changing it."""
    return (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.INFO.{stream}.*",
        "$JS.FC.>",
    )


class Permissions(NamedTuple):
    """Subjects to which a user may publish and subscribe; those of `deny` are exceptions of `publish`."""

    publish: Sequence[str]
    subscribe: Sequence[str]
    deny: Sequence[str] = ()


def inbox(user: str) -> str:
    """Return the prefix of a user's inboxes, which no other user may read."""
    return f"_INBOX_{user}"


# A wildcard of NATS stands for whole words, so the streams of pools, which have names of their own, are given by `*`,
# and `deny` has the other ones. Only config services make and change streams: one that republishes, or has another one
# as its source, would write to any subject, and copy any stream. For the same reason, direct get is allowed to none:
# its answer goes to any subject, byte for byte. No gateway may acknowledge: an acknowledgement can fetch the next work.
PERMISSIONS: Mapping[str, Permissions] = {
    GATEWAY: Permissions(
        publish=(
            *("sie.work.*.*", "sie.cancel.*", "sie.wanted.*", "sie.ask.*", "sie.ask.*.*", subjects.ALL_GATEWAYS),
            *(subjects.ALL_STREAMS, "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.DELETE.*"),
            *(*following(MODEL_FILES), *following(LEASES), f"$KV.{subjects.LEASES}.>"),
        ),
        deny=tuple(f"$JS.API.STREAM.MSG.DELETE.{name}" for name in (MODEL_FILES, LEASES, DEAD)),
        subscribe=(f"{inbox(GATEWAY)}.>", "sie.answer.*", subjects.ALL_WORKERS, subjects.ALL_GATEWAYS),
    ),
    SIDECAR: Permissions(
        publish=(
            *("sie.work.*.*", "sie.answer.*", "sie.dead.*.*", subjects.ALL_WORKERS, subjects.ALL_STREAMS),
            *("$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.CONSUMER.CREATE.*"),
            *("$JS.API.CONSUMER.CREATE.*.*.sie.work.*.*", "$JS.API.CONSUMER.INFO.*.*"),
            *("$JS.API.CONSUMER.MSG.NEXT.*.*", "$JS.FC.>", "$JS.ACK.>", "$KV.*.>"),
            f"{inbox(GATEWAY)}.>",  # answers to questions
        ),
        deny=(
            *(f"$KV.{bucket}.>" for bucket in (subjects.MODEL_FILES, subjects.LEASES)),
            *(f"$JS.API.STREAM.MSG.GET.{DEAD}", f"$JS.API.CONSUMER.CREATE.{DEAD}"),
        ),
        subscribe=(
            f"{inbox(SIDECAR)}.>",
            *("sie.cancel.*", "sie.wanted.*", "sie.ask.*", "sie.ask.*.*", subjects.ALL_WORKERS),
            subjects.ALL_GATEWAYS,
        ),
    ),
    CONFIG: Permissions(
        publish=(
            *(f"$JS.API.STREAM.{verb}.*" for verb in ("CREATE", "UPDATE", "INFO", "DELETE")),
            *("$JS.API.STREAM.LIST", *following(MODEL_FILES), f"$KV.{subjects.MODEL_FILES}.>"),
        ),
        deny=tuple(f"$JS.API.STREAM.DELETE.{name}" for name in (MODEL_FILES, LEASES, DEAD)),
        subscribe=(f"{inbox(CONFIG)}.>", subjects.ALL_WORKERS, subjects.ALL_STREAMS),
    ),
    # A person with the command nats: streams, backlog, dead letters.
    OPERATOR: Permissions(publish=(">",), subscribe=(">",)),
}


def nats_users() -> str:
    """Return the part of nats-server's configuration with the users; their passwords are environment variables."""
    users = []
    for name, (publish, subscribe, deny) in PERMISSIONS.items():
        may_publish = f"{{allow: {json.dumps(publish)}, deny: {json.dumps(deny)}}}" if deny else json.dumps(publish)
        allowed = f"publish: {may_publish}, subscribe: {json.dumps(subscribe)}"
        users.append(f"    {{user: {name}, password: ${PASSWORDS[name]}, permissions: {{{allowed}}}}}\n")
    return f"authorization {{\n  users: [\n{''.join(users)}  ]\n}}\n"
