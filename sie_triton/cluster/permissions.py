"""Users of NATS, one for each part of a cluster, which may use the subjects of that part only."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sie_triton.cluster import subjects

GATEWAY, SIDECAR, CONFIG, OPERATOR = "gateway", "sidecar", "config", "operator"

# Environment variables of nats-server with the passwords of the users.
PASSWORDS = {name: f"SIE_{name.upper()}_PASSWORD" for name in (GATEWAY, SIDECAR, CONFIG, OPERATOR)}

# The stream API that both parts need: whoever comes first makes the streams.
STREAMS = ("$JS.API.INFO", *(f"$JS.API.STREAM.{verb}.*" for verb in ("CREATE", "UPDATE", "INFO")))


def following(bucket: str) -> Sequence[str]:
    """Return the subjects of a user that follows a bucket, without changing it."""
    stream = f"KV_{bucket}"
    return (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        *(f"$JS.API.CONSUMER.{verb}.{stream}.*" for verb in ("INFO", "DELETE")),
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        "$JS.FC.>",
    )


def changing(bucket: str) -> Sequence[str]:
    """Return the subjects of a user that makes a bucket and writes to it."""
    return (
        f"$KV.{bucket}.>",
        *(f"$JS.API.STREAM.{verb}.KV_{bucket}" for verb in ("CREATE", "UPDATE", "MSG.DELETE")),
    )


# Buckets with one writer: the config service, and the gateways.
MODEL_FILES, LEASES = subjects.MODEL_FILES, subjects.LEASES


class Permissions(NamedTuple):
    """Subjects to which a user may publish and subscribe; those of `deny` are exceptions of `publish`."""

    publish: Sequence[str]
    subscribe: Sequence[str]
    deny: Sequence[str] = ()


def inbox(user: str) -> str:
    """Return the prefix of a user's inboxes, which no other user may read."""
    return f"_INBOX_{user}"


PERMISSIONS: Mapping[str, Permissions] = {
    GATEWAY: Permissions(
        publish=(
            *("sie.work.*.*", "sie.cancel.*", "sie.wanted.*", "sie.ask.*", "sie.ask.*.*", subjects.ALL_GATEWAYS),
            *STREAMS,
            *(*following(MODEL_FILES), *following(LEASES), f"$KV.{LEASES}.>"),
            *("$JS.API.STREAM.MSG.DELETE.*", "$JS.API.STREAM.LIST", "$JS.API.STREAM.DELETE.*"),
            "$JS.ACK.>",
        ),
        deny=(
            *changing(MODEL_FILES),
            *(f"$JS.API.STREAM.DELETE.{name}" for name in (f"KV_{MODEL_FILES}", f"KV_{LEASES}", subjects.DEAD_STREAM)),
        ),
        subscribe=(f"{inbox(GATEWAY)}.>", "sie.answer.*", subjects.ALL_WORKERS, subjects.ALL_GATEWAYS),
    ),
    SIDECAR: Permissions(
        publish=(
            *("sie.work.*.*", "sie.answer.*", "sie.dead.*.*", subjects.ALL_WORKERS),
            *STREAMS,
            *("$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DURABLE.CREATE.>", "$JS.API.CONSUMER.DELETE.>"),
            *("$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.MSG.NEXT.*.*", "$JS.API.DIRECT.GET.>"),
            *("$JS.API.STREAM.MSG.GET.*", "$JS.FC.>", "$JS.ACK.>", "$KV.*.>"),
            f"{inbox(GATEWAY)}.>",  # answers to questions
        ),
        deny=(*changing(MODEL_FILES), *changing(LEASES)),
        subscribe=(
            f"{inbox(SIDECAR)}.>",
            *("sie.cancel.*", "sie.wanted.*", "sie.ask.*", "sie.ask.*.*", subjects.ALL_WORKERS),
            subjects.ALL_GATEWAYS,
        ),
    ),
    CONFIG: Permissions(
        publish=("$JS.API.INFO", *following(MODEL_FILES), *changing(MODEL_FILES)),
        subscribe=(f"{inbox(CONFIG)}.>", subjects.ALL_WORKERS),
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
