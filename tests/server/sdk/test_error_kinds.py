"""Errors of each status cross a real tritonserver, to Triton's own clients, to ours, and to the door.

Triton's own clients read a message behind a short prefix. SIEClient and the door read the prefix and show none. All
kinds of errors are in tests/pure/doors/test_error_kinds.py.
"""

from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sie_triton.client.address import Address
from sie_triton.client.connections import GrpcConnection, HttpConnection
from sie_triton.client.failures import NotServed
from sie_triton.client.retry import Deadline
from sie_triton.contract.names import triton_name
from sie_triton.errors import EndpointBusy, InputError, LoadError, ModelError, SIEError
from tests.server.sdk.conftest import GONE, WARM, Provoked, text

TRANSPORTS = [(tritonclient.grpc, GrpcConnection), (tritonclient.http, HttpConnection)]


@dataclass(frozen=True)
class Kind:
    """An error: its prefix, Triton's statuses (gRPC, HTTP), its type, and the door's statuses (SIE, OpenAI) and code.

    `endpoint` is the name of the endpoint's response that provokes it.
    """

    prefix: str
    statuses: tuple[str, str]
    error: type[SIEError]
    door: tuple[int, int, str]
    endpoint: str = ""
    field: str = ""
    retry_after_s: int | None = None
    model: str = WARM
    parameters: tuple[tuple[str, Any], ...] = ()


INVALID = ("StatusCode.INVALID_ARGUMENT", "400")
AWAY = ("StatusCode.UNAVAILABLE", "503")
BROKEN = ("StatusCode.INTERNAL", "500")
UNKNOWN = ("StatusCode.NOT_FOUND", "404")
KINDS = {
    "input": Kind(
        "[input field=dimensions] ",
        INVALID,
        InputError,
        (400, 400, "INVALID_INPUT"),
        field="dimensions",
        parameters=(("dimensions", 65),),
    ),
    "endpoint_busy": Kind(
        "[endpoint_busy retry=7] ", AWAY, EndpointBusy, (503, 503, "QUEUE_FULL"), endpoint="429", retry_after_s=7
    ),
    "model": Kind("[model] ", BROKEN, ModelError, (500, 500, "INFERENCE_ERROR"), endpoint="500"),
    "load.not_found": Kind("[load.not_found] ", AWAY, LoadError, (502, 502, "MODEL_LOAD_FAILED"), model=GONE),
    "not_served": Kind("", UNKNOWN, NotServed, (404, 404, "MODEL_NOT_FOUND"), field="model", model="test/nowhere"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_errors_carry_a_readable_message_and_structured_fields(served, kind):
    ensemble = triton_name(kind.model)
    asked: dict[str, Any] = {"model_name": ensemble, "parameters": dict(kind.parameters)}
    with served.endpoint.in_trouble(kind.endpoint):
        for (transport, connection), status in zip(TRANSPORTS, kind.statuses, strict=True):
            protocol = transport.__name__.rpartition(".")[2]
            url = served.address(protocol)
            with transport.InferenceServerClient(url) as plain, pytest.raises(InferenceServerException) as raw:
                plain.infer(inputs=[text(transport)], **asked)
            ours = connection(Address.parse(f"{protocol}://{url}"))
            with pytest.raises(SIEError) as caught:
                ours.ask("infer", Deadline.after(60), inputs=[text(transport)], **asked)
            ours.close()
            framing = f"in ensemble '{ensemble}', {kind.prefix}" if kind.prefix else ""
            assert (raw.value.status(), raw.value.message()) == (status, f"{framing}{caught.value}")
            told = type(caught.value), caught.value.field, caught.value.retry_after_s
            assert told == (kind.error, kind.field, kind.retry_after_s)
        at_the_door(served, kind)


def at_the_door(served: Provoked, kind: Kind) -> None:
    with httpx.Client(base_url=served.door, timeout=60) as client:
        params = {"options": dict(kind.parameters)}
        sie_answer = client.post(f"/v1/encode/{kind.model}", json={"items": ["hello"], "params": params})
        openai = client.post("/v1/embeddings", json={"input": "hello", "model": kind.model, **dict(kind.parameters)})
    detail, error = sie_answer.json()["detail"], openai.json()["error"]
    retry = None if kind.retry_after_s is None else str(kind.retry_after_s)
    assert (sie_answer.status_code, openai.status_code, detail["code"]) == kind.door
    assert [each.headers.get("Retry-After") for each in (sie_answer, openai)] == [retry] * 2
    assert error["param"] == (kind.field or None)
    assert "[" not in (detail["message"][0], error["message"][0])
