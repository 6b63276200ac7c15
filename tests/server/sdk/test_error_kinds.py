"""Errors of each kind that is cheap to provoke, at a real tritonserver and at the door.

Triton's own clients read a sentence behind a short prefix. SIEClient and the door read the prefix and show none.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.client.address import Address
from sie_triton.client.connections import GrpcConnection, HttpConnection
from sie_triton.client.failures import NotServed
from sie_triton.client.retry import Deadline
from sie_triton.contract.names import triton_name
from sie_triton.errors import (
    BusyError,
    DeadlinePassed,
    EndpointAway,
    EndpointBusy,
    InputError,
    LoadError,
    ModelError,
    ModelLoading,
    SIEError,
)
from tests.server.sdk.conftest import COLD, GONE, MAX_REQUESTS, WARM, Provoked, away, full, num_open, silent, text
from tests.server.test_remote import trouble
from tests.support.controller import wait_for

SECONDS = 0.4
TRANSPORTS = [(tritonclient.grpc, GrpcConnection), (tritonclient.http, HttpConnection)]


def nothing(_: Provoked) -> AbstractContextManager[None]:
    return nullcontext()


def answers(name: str) -> Callable[[Provoked], AbstractContextManager[None]]:
    return lambda served: trouble(served.endpoint, name)


@dataclass(frozen=True)
class Kind:
    """What provokes a kind of error; Triton's status; the prefix and the sentence; the client's error; the door's."""

    provoke: Callable[[Provoked], AbstractContextManager[None]]
    prefix: str
    sentence: str
    error: type[SIEError]
    statuses: tuple[str, str]
    door: tuple[int, int, str]
    field: str = ""
    retry_after_s: int | None = None
    model: str = WARM
    seconds: float = 30.0
    parameters: tuple[tuple[str, Any], ...] = ()


INVALID, AWAY, BROKEN, UNKNOWN = (
    ("StatusCode.INVALID_ARGUMENT", "400"),
    ("StatusCode.UNAVAILABLE", "503"),
    ("StatusCode.INTERNAL", "500"),
    ("StatusCode.NOT_FOUND", "404"),
)

BUSY = Kind(
    full,
    "[busy retry=1] ",
    f"{MAX_REQUESTS} requests are in progress on this server, .*; retry in a second",
    BusyError,
    AWAY,
    (503, 429, "QUEUE_FULL"),
    retry_after_s=1,
)

KINDS = {
    "input": Kind(
        nothing,
        "[input field=dimensions] ",
        "parameter dimensions: 65 is not allowed; give an integer from 1 to 64",
        InputError,
        INVALID,
        (400, 400, "INVALID_INPUT"),
        field="dimensions",
        parameters=(("dimensions", 65),),
    ),
    "a field that is no name": Kind(
        nothing,
        "[input] ",
        r"parameter x\] \[busy retry=9: unknown here; allowed are .*",
        InputError,
        INVALID,
        (400, 400, "INVALID_INPUT"),
        parameters=(("x] [busy retry=9", 1),),
    ),
    "busy": BUSY,
    "busy_with_another_model": replace(BUSY, model=COLD),
    "timeout": Kind(
        silent,
        "[timeout retry=5] ",
        "timeout: passed before .*",
        DeadlinePassed,
        AWAY,
        (504, 504, "DEADLINE_EXCEEDED"),
        retry_after_s=5,
        seconds=SECONDS,
    ),
    "endpoint_busy": Kind(
        answers("429"),
        "[endpoint_busy retry=7] ",
        "http://.*: answers 429, too many requests; retry in 7 s",
        EndpointBusy,
        AWAY,
        (503, 503, "QUEUE_FULL"),
        retry_after_s=7,
    ),
    "endpoint_away": Kind(
        away,
        "[endpoint_away retry=1] ",
        "http://.*: the endpoint does not answer .*; retry in 1 s",
        EndpointAway,
        AWAY,
        (503, 502, "QUEUE_FULL"),
        retry_after_s=1,
    ),
    "load.gated": Kind(
        answers("401"),
        "[load.gated] ",
        "http://.*: answers 401, Unauthorized; .*",
        LoadError,
        AWAY,
        (502, 502, "MODEL_LOAD_FAILED"),
    ),
    "model": Kind(
        answers("500"),
        "[model] ",
        "http://.*: answers 500.*",
        ModelError,
        BROKEN,
        (500, 500, "INFERENCE_ERROR"),
    ),
    "model_loading": Kind(
        silent,
        "[model_loading retry=5] ",
        "timeout: passed while the model is being loaded.*",
        ModelLoading,
        AWAY,
        (503, 503, "MODEL_LOADING"),
        retry_after_s=5,
        model=COLD,
        seconds=SECONDS,
    ),
    "load.not_found": Kind(
        nothing,
        "[load.not_found] ",
        r"the model is not loaded \(not found\): .*; fix this, then run sie-triton load test__gone",
        LoadError,
        AWAY,
        (502, 502, "MODEL_LOAD_FAILED"),
        model=GONE,
    ),
    "not_served": Kind(
        nothing,
        "",
        "Request for unknown model: 'test__nowhere' is not found",
        NotServed,
        UNKNOWN,
        (404, 404, "MODEL_NOT_FOUND"),
        field="model",
        model="test/nowhere",
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_errors_carry_a_readable_message_and_structured_fields(served, kind):
    ensemble, parameters = triton_name(kind.model), dict(kind.parameters)
    wait_for(lambda: num_open(served) == 0)  # of the kind before
    asked: dict[str, Any] = {"model_name": ensemble, "parameters": parameters, "timeout": int(kind.seconds * 1e6)}
    with kind.provoke(served):
        for (transport, connection), status in zip(TRANSPORTS, kind.statuses, strict=True):
            url = served.address(transport.__name__.rpartition(".")[2])
            with transport.InferenceServerClient(url) as plain, pytest.raises(InferenceServerException) as raw:
                plain.infer(inputs=[text(transport)], **asked)
            framing = f"in ensemble '{ensemble}', " if kind.prefix else ""
            assert re.fullmatch(re.escape(framing + kind.prefix) + kind.sentence, raw.value.message())
            assert raw.value.status() == status
            ours = connection(Address.parse(f"{transport.__name__.rpartition('.')[2]}://{url}"))
            with pytest.raises(SIEError) as caught:
                ours.ask("infer", Deadline.after(60), inputs=[text(transport)], **asked)
            ours.close()
            assert re.fullmatch(kind.sentence, str(caught.value))
            told = type(caught.value), caught.value.field, caught.value.retry_after_s
            assert told == (kind.error, kind.field, kind.retry_after_s)
        at_the_door(served, kind)


def at_the_door(served: Provoked, kind: Kind) -> None:
    headers = {"X-Request-Timeout": str(kind.seconds)}
    options = {"options": dict(kind.parameters)}
    with httpx.Client(base_url=served.door, headers=headers, timeout=60) as client:
        sie_answer = client.post(f"/v1/encode/{kind.model}", json={"items": ["hello"], "params": options})
        openai = client.post("/v1/embeddings", json={"input": "hello", "model": kind.model, **dict(kind.parameters)})
    detail, error = sie_answer.json()["detail"], openai.json()["error"]
    retry = None if kind.retry_after_s is None else str(kind.retry_after_s)
    assert (sie_answer.status_code, openai.status_code, detail["code"]) == kind.door
    assert [each.headers.get("Retry-After") for each in (sie_answer, openai)] == [retry] * 2
    assert error["param"] == (kind.field or None)
    if kind.prefix:
        assert re.fullmatch(kind.sentence, detail["message"])
        assert re.fullmatch(kind.sentence, error["message"])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_clients_exceptions_have_no_prefix(served, protocol):
    with SIEClient(f"{protocol}://{served.address(protocol)}") as client:
        with pytest.raises(InputError, match=r"^parameter dimensions: 65 is not allowed") as caught:
            client.encode(WARM, "hello", options={"dimensions": 65})
        assert caught.value.field == "dimensions"
        with pytest.raises(LoadError, match=r"^the model is not loaded \(not found\)") as gone:
            client.encode(GONE, "hello")
        assert (gone.value.reason, gone.value.is_permanent) == ("not found", True)
        with pytest.raises(NotServed, match=r"^model: test/nowhere is not served; served models: "):
            client.encode("test/nowhere", "hello")
