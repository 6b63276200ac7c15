"""What the user of each part of a cluster may do in NATS, by example subjects: for tests, and for docs/security.md."""

from collections.abc import Sequence
from typing import NamedTuple

from sie_triton.cluster.permissions import CONFIG, GATEWAY, OPERATOR, PERMISSIONS, SIDECAR, inbox

USERS = (GATEWAY, SIDECAR, CONFIG, OPERATOR)

WORK, DEAD, FILES, LEASES, CLAIMS = (
    *("SIE_WORK_default", "SIE_DEAD", "KV_SIE_MODEL_FILES", "KV_SIE_LEASES", "KV_SIE_CLAIMS_default"),
)
STREAMS = (WORK, DEAD, FILES, LEASES, CLAIMS)


class Power(NamedTuple):
    """Something that a user may do if it may publish or subscribe to one of these subjects."""

    what: str
    publish: Sequence[str] = ()
    subscribe: Sequence[str] = ()

    def of(self, user: str) -> bool:
        return any(may_publish(user, each) for each in self.publish) or any(
            may_subscribe(user, each) for each in self.subscribe
        )


def may_publish(user: str, subject: str) -> bool:
    permissions = PERMISSIONS[user]
    allowed, denied = (
        any(covers(each, subject) for each in patterns) for patterns in (permissions.publish, permissions.deny)
    )
    return allowed and not denied


def may_subscribe(user: str, subject: str) -> bool:
    return any(covers(each, subject) for each in PERMISSIONS[user].subscribe)


def covers(pattern: str, subject: str) -> bool:
    """Return True if every subject that `subject` stands for is one of `pattern`, by NATS' wildcards.

    >>> covers("sie.work.*.*", "sie.work.default.m"), covers("sie.*", "sie.a.b"), covers("$KV.>", "$KV.a.b")
    (True, False, True)
    >>> covers("sie.answer.*", "sie.answer.>"), covers("sie.>", "sie.answer.*"), covers("a.b", "a.*")
    (False, True, False)
    """
    patterns, words = pattern.split("."), subject.split(".")
    for at, expected in enumerate(patterns):
        if expected == ">":
            return len(words) > at
        if at >= len(words) or words[at] == ">" or (expected != "*" and words[at] != expected):
            return False
    return len(words) == len(patterns)


def api(verb: str, *names: str) -> str:
    return ".".join(("$JS.API", verb, *names))


# Rows of the table in docs/security.md, in its order.
POWERS = (
    Power("put requests into the queue", publish=["sie.work.default.m"]),
    Power("take requests from the queue", publish=[api("CONSUMER.MSG.NEXT", WORK, "m"), f"$JS.ACK.{WORK}.m.1.1.1.1.0"]),
    Power(
        "read requests that stay in the queue",
        publish=[api("STREAM.MSG.GET", WORK), api("CONSUMER.CREATE", WORK), api("DIRECT.GET", WORK)],
        subscribe=["sie.work.>"],
    ),
    Power("delete requests from the queue", publish=[api("STREAM.MSG.DELETE", WORK), f"$JS.ACK.{WORK}.m.1.1.1.1.0"]),
    Power("cancel requests", publish=["sie.cancel.default"]),
    Power("answer requests", publish=["sie.answer.g"]),
    Power("read answers", subscribe=["sie.answer.*", f"{inbox(GATEWAY)}.>"]),
    Power("count as a worker", publish=["sie.health.default.w"]),
    Power("count as a gateway", publish=["sie.gateway.g"]),
    Power("ask workers about their models, and have them serve known ones", publish=["sie.ask.default"]),
    Power("read model files", publish=[api("CONSUMER.CREATE", FILES), api("STREAM.MSG.GET", FILES)]),
    Power("write model files", publish=["$KV.SIE_MODEL_FILES.=.m"]),
    Power("write leases of pools", publish=["$KV.SIE_LEASES.eval"]),
    Power("write which worker serves which model", publish=["$KV.SIE_CLAIMS_default.m"]),
    Power("write requests that were put aside", publish=["sie.dead.default.m"]),
    Power(
        "read requests that were put aside",
        publish=[api("STREAM.MSG.GET", DEAD), api("CONSUMER.CREATE", DEAD), api("DIRECT.GET", DEAD)],
        subscribe=["sie.dead.>"],
    ),
    Power("ask for the stream of a pool", publish=["sie.streams.default"]),
    Power(
        "make and change streams, so copy all that passes",
        publish=[
            api(f"STREAM.{verb}", each) for verb in ("CREATE", "UPDATE", "RESTORE") for each in (*STREAMS, "EVIL")
        ],
    ),
    Power(
        "delete or empty the streams of pools",
        publish=[api(f"STREAM.{verb}", each) for verb in ("DELETE", "PURGE") for each in (WORK, CLAIMS)],
    ),
    Power(
        "delete or empty model files, leases and requests that were put aside",
        publish=[
            *(
                api(f"STREAM.{verb}", each)
                for verb in ("DELETE", "PURGE", "MSG.DELETE")
                for each in (DEAD, FILES, LEASES)
            ),
        ],
    ),
    # NATS does not check the subject to which a client has it answer.
    Power("delete or empty any stream, by an answer without work", publish=[api("CONSUMER.MSG.NEXT", WORK, "m")]),
    Power("hide entries of any bucket, by answers of NATS", publish=[api("STREAM.INFO", WORK)]),
    Power(
        "have an entry sent to any subject, byte for byte",
        publish=[api("DIRECT.GET", each, "x") for each in STREAMS] + [api("STREAM.SNAPSHOT", each) for each in STREAMS],
    ),
    Power(
        "move or end servers of NATS, and what they lead",
        publish=[
            *(api(f"META.{verb}") for verb in ("LEADER.STEPDOWN", "SERVER.REMOVE")),
            *(api(f"STREAM.{verb}", each) for verb in ("PEER.REMOVE", "LEADER.STEPDOWN") for each in STREAMS),
            api("CONSUMER.LEADER.STEPDOWN", WORK, "m"),
        ],
    ),
    *(
        Power(f"read what NATS answers to {whom}", subscribe=[f"{inbox(user)}.>"])
        for user, whom in ((SIDECAR, "sidecars"), (CONFIG, "config services"))
    ),
)


def table() -> str:
    """Return the table of docs/security.md: what may be done, by the users that may."""
    by_users: dict[str, list[str]] = {}
    for each in POWERS:
        by_users.setdefault(", ".join(user for user in USERS if each.of(user)), []).append(each.what)
    lines = ["| with the password of | one can |", "|---|---|"]
    return "\n".join([*lines, *(f"| {users} | {'; '.join(powers)} |" for users, powers in by_users.items())]) + "\n"
