"""Names in NATS, built from validated names only: a name can never become another subject, or a wildcard.

sie.work.POOL.MODEL          stream SIE_WORK_POOL: requests that wait for a worker, one consumer per model
sie.answer.GATEWAY           answers, to the gateway that waits for them
sie.cancel.POOL              requests whose client no longer waits
sie.wanted.POOL              models that requests name and no worker has claimed
sie.health.POOL.WORKER       heartbeat of a sidecar
sie.gateway.GATEWAY          heartbeat of a gateway
sie.ask.POOL                 questions that any worker of the pool can answer; sie.ask.POOL.WORKER: one of them
sie.streams.POOL             asks the config service for the streams of a pool
sie.dead.POOL.MODEL          stream SIE_DEAD: requests that ended the Triton that ran them, twice
bucket SIE_CLAIMS_POOL       the workers that serve each model of a pool
bucket SIE_LEASES            pools that clients have leased
bucket SIE_MODEL_FILES       model files of all pools, as the config service has written them
"""

import re
from typing import NamedTuple

from sie_triton.errors import InputError

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

# A gateway's name: a name, and the number that makes it unique.
GATEWAY = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)

# A model's name in Triton. "=" does not occur in it, so that `token` is reversible.
MODEL = re.compile(r"[A-Za-z0-9_.+-]{1,200}", re.ASCII)

# Subject that acknowledges work of any pool, with or without a domain (NATS ADR-15): stream, consumer, number of
# deliveries, number in the stream, three numbers.
RECEIPT = re.compile(
    r"\$JS\.ACK\.([!-)+\-/-=?-~]{1,64}\.[!-)+\-/-=?-~]{1,64}\.)?"
    r"(?P<stream>SIE_WORK_[A-Za-z0-9_-]{1,64})\.[A-Za-z0-9_+=-]{1,600}"
    r"\.(?P<deliveries>[0-9]{1,20})\.(?P<sequence>[0-9]{1,20})(\.[0-9]{1,20}){3}(\.[A-Za-z0-9]{1,64})?",
    re.ASCII,
)

# The buckets of leases and of model files.
LEASES = "SIE_LEASES"
MODEL_FILES = "SIE_MODEL_FILES"

DEAD_STREAM = "SIE_DEAD"
DEAD_SUBJECTS = "sie.dead.>"


def checked_name(name: str, what: str) -> str:
    """Return the name of a pool, worker or gateway; InputError names `what` if it cannot be part of a subject."""
    if not NAME.fullmatch(name):
        raise InputError.at(what, f"must be 1 to 64 letters, digits, _ or -; got {name[:80]!r}")
    return name


def token(model: str) -> str:
    """Return a model's name in Triton as one token of a subject; InputError if it is no such name.

    >>> token("BAAI__bge-small-en-v1.5"), model_of(token("BAAI__bge-small-en-v1.5"))
    ('BAAI__bge-small-en-v1=2E5', 'BAAI__bge-small-en-v1.5')
    """
    if not MODEL.fullmatch(model):
        raise InputError.at("model", f"{model[:80]!r} is not a model's name")
    return escaped(model)


def escaped(name: str) -> str:
    return name.replace(".", "=2E")


def model_of(name: str) -> str:
    return name.replace("=2E", ".")


def stream(pool: str) -> str:
    return f"SIE_WORK_{pool}"


def all_work(pool: str) -> str:
    return f"sie.work.{pool}.*"


def work(pool: str, model: str) -> str:
    return f"sie.work.{pool}.{token(model)}"


def claims(pool: str) -> str:
    """Return the bucket with the workers that serve each model."""
    return f"SIE_CLAIMS_{pool}"


def answers(gateway: str) -> str:
    """Return the subject of a gateway's answers; InputError if it is no gateway's name."""
    if not GATEWAY.fullmatch(gateway):
        raise InputError.at("gateway", f"{gateway[:80]!r} is not a gateway's name")
    return f"sie.answer.{gateway}"


def cancelled(pool: str) -> str:
    return f"sie.cancel.{pool}"


def wanted(pool: str) -> str:
    return f"sie.wanted.{pool}"


def streams(pool: str) -> str:
    return f"sie.streams.{pool}"


def worker_health(pool: str, worker: str) -> str:
    return f"sie.health.{pool}.{worker}"


def gateway_health(gateway: str) -> str:
    return f"sie.gateway.{gateway}"


class Delivered(NamedTuple):
    """The stream of a request, its number there, and how often it was delivered."""

    stream: str
    sequence: int
    num_deliveries: int


def delivered(receipt: str) -> Delivered | None:
    """Return which request a receipt acknowledges; None if it is no receipt.

    >>> delivered("$JS.ACK.SIE_WORK_default.m.1.7.3.1795918188137359161.0"), delivered("sie.cancel.default")
    (Delivered(stream='SIE_WORK_default', sequence=7, num_deliveries=1), None)
    """
    found = RECEIPT.fullmatch(receipt)
    return Delivered(found["stream"], int(found["sequence"]), int(found["deliveries"])) if found else None


ALL_WORKERS = "sie.health.*.*"
ALL_STREAMS = "sie.streams.*"
ALL_GATEWAYS = "sie.gateway.*"


def questions(pool: str) -> str:
    return f"sie.ask.{pool}"


def questions_of(pool: str, worker: str) -> str:
    return f"sie.ask.{pool}.{worker}"


def dead(pool: str, model: str) -> str:
    return f"sie.dead.{pool}.{token(model)}"
