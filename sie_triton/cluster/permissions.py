"""Users of NATS, one for each part of a cluster, which may use the subjects of that part only."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sie_triton.cluster import subjects

GATEWAY, SIDECAR, OPERATOR = "gateway", "sidecar", "operator"

# Environment variables of nats-server with the passwords of the users.
PASSWORDS = {GATEWAY: "SIE_GATEWAY_PASSWORD", SIDECAR: "SIE_SIDECAR_PASSWORD", OPERATOR: "SIE_OPERATOR_PASSWORD"}

# The stream API that both parts need: whoever comes first makes the streams.
STREAMS = ("$JS.API.INFO", *(f"$JS.API.STREAM.{verb}.*" for verb in ("CREATE", "UPDATE", "INFO")))


class Permissions(NamedTuple):
    """Subjects to which a user may publish and subscribe."""

    publish: Sequence[str]
    subscribe: Sequence[str]


def inbox(user: str) -> str:
    """Return the prefix of a user's inboxes, which no other user may read."""
    return f"_INBOX_{user}"


PERMISSIONS: Mapping[str, Permissions] = {
    GATEWAY: Permissions(
        publish=(
            *("sie.work.*.*", "sie.cancel.*", "sie.wanted.*", "sie.ask.*", "sie.ask.*.*", subjects.ALL_GATEWAYS),
            *STREAMS,
            "$JS.API.STREAM.MSG.DELETE.*",
            "$JS.ACK.>",
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
        subscribe=(
            f"{inbox(SIDECAR)}.>",
            *("sie.cancel.*", "sie.wanted.*", "sie.ask.*", "sie.ask.*.*", subjects.ALL_WORKERS),
            subjects.ALL_GATEWAYS,
        ),
    ),
    # A person with the command nats: streams, backlog, dead letters.
    OPERATOR: Permissions(publish=(">",), subscribe=(">",)),
}


def nats_users() -> str:
    """Return the part of nats-server's configuration with the users; their passwords are environment variables."""
    users = []
    for name, (publish, subscribe) in PERMISSIONS.items():
        allowed = f"publish: {json.dumps(publish)}, subscribe: {json.dumps(subscribe)}"
        users.append(f"    {{user: {name}, password: ${PASSWORDS[name]}, permissions: {{{allowed}}}}}\n")
    return f"authorization {{\n  users: [\n{''.join(users)}  ]\n}}\n"
