"""Each kind of error on its way: worker, stage, Triton's text, client, and the door's response in each dialect."""

import json
import pickle
from pathlib import Path
from typing import NamedTuple

import pytest
from tritonclient.utils import InferenceServerException

from sie_triton import errors
from sie_triton.client.address import Address
from sie_triton.client.failures import NotServed, StageDied, is_of_a_step, our_errors
from sie_triton.contract.error_prefix import with_prefix
from sie_triton.doors.endpoint import SIE, failure_response
from sie_triton.doors.failures import TABLE, Failure, failure_of
from sie_triton.doors.openai import OPENAI
from sie_triton.doors.rerank import COHERE
from sie_triton.doors.tei import TEI
from sie_triton.errors import (
    KINDS,
    REASONS,
    BusyError,
    Cancelled,
    DeadlinePassed,
    EndpointAway,
    EndpointBusy,
    InputError,
    LoadError,
    LoraLoading,
    ModelError,
    ModelLoading,
    OutOfMemory,
    Provisioning,
    SIEError,
    Unreachable,
)
from sie_triton.pipeline.worker.messages import Failed

STATUSES = {
    "INVALID_ARG": ("StatusCode.INVALID_ARGUMENT", "400"),
    "UNAVAILABLE": ("StatusCode.UNAVAILABLE", "503"),
    "INTERNAL": ("StatusCode.INTERNAL", "500"),
    "CANCELLED": ("StatusCode.CANCELLED", "499"),
}
GRPC, HTTP = Address.parse("grpc://localhost:8001"), Address.parse("http://localhost:8000")


class Case(NamedTuple):
    """An error, its code at Triton, its prefix, and the door's code, statuses (SIE, OpenAI, Cohere, TEI) and types."""

    error: SIEError
    triton: str
    prefix: str
    code: str
    statuses: tuple[int, int, int, int]
    openai_type: str
    tei_type: str


def refused(reason: str, retry: str) -> Case:
    error = LoadError("details", reason).refusal("what next")
    prefix = f"[load.{reason.replace(' ', '_')}{retry}] "
    return Case(error, "UNAVAILABLE", prefix, "MODEL_LOAD_FAILED", (502, 502, 502, 424), "server_error", "Backend")


SERVER, RATE, REQUEST = "server_error", "rate_limit_error", "invalid_request_error"
FULL, AWAY, BROKEN = (503, 429, 429, 429), (503,) * 4, (500, 500, 500, 424)
BAD = InputError.at("text[2]", "not valid UTF-8")
BUSY = BusyError("512 requests are in progress", retry_after_s=1)
FAR, FAR_BUSY = EndpointAway("http://far: no answer", retry_after_s=1), EndpointBusy("http://far: 429", retry_after_s=7)
SENT = [
    Case(BAD, "INVALID_ARG", "[input field=text[2]] ", "INVALID_INPUT", (400, 400, 400, 422), REQUEST, "Validation"),
    *[
        Case(error, "UNAVAILABLE", f"[{prefix}] ", code, statuses, openai_type, tei_type)
        for error, prefix, code, statuses, openai_type, tei_type in (
            (BUSY, "busy retry=1", "QUEUE_FULL", FULL, RATE, "Overloaded"),
            (OutOfMemory("no memory"), "out_of_memory retry=5", "RESOURCE_EXHAUSTED", FULL, RATE, "Overloaded"),
            (DeadlinePassed("late"), "timeout retry=5", "DEADLINE_EXCEEDED", (504,) * 4, SERVER, "Unhealthy"),
            (ModelLoading("cold"), "model_loading retry=5", "MODEL_LOADING", AWAY, SERVER, "Unhealthy"),
            (LoraLoading("lora x: loads"), "lora_loading retry=1", "LORA_LOADING", AWAY, SERVER, "Unhealthy"),
            (FAR, "endpoint_away retry=1", "QUEUE_FULL", (503, 502, 502, 503), SERVER, "Unhealthy"),
            (FAR_BUSY, "endpoint_busy retry=7", "QUEUE_FULL", AWAY, SERVER, "Unhealthy"),
            (Provisioning("no worker yet"), "provisioning retry=5", "PROVISIONING", AWAY, SERVER, "Unhealthy"),
            (Unreachable("x: no server"), "unreachable retry=2", "QUEUE_UNAVAILABLE", AWAY, SERVER, "Unhealthy"),
        )
    ],
    Case(ModelError("failed"), "INTERNAL", "[model] ", "INFERENCE_ERROR", BROKEN, SERVER, "Backend"),
    Case(SIEError("?"), "INTERNAL", "[internal] ", "INFERENCE_ERROR", BROKEN, SERVER, "Backend"),
    *[refused(reason, "" if seconds is None else f" retry={seconds}") for reason, seconds in REASONS.items()],
]
GONE = Cancelled("cancelled by the client")
CANCELLED = Case(GONE, "CANCELLED", "[cancelled] ", "QUEUE_UNAVAILABLE", AWAY, SERVER, "Unhealthy")
CLIENTS = [Case(NotServed("model: x"), "", "", "MODEL_NOT_FOUND", (404, 404, 404, 424), REQUEST, "Backend")]


def name(case: Case) -> str:
    return case.error.kind


def described(error: SIEError) -> tuple[object, ...]:
    reason = error.reason if isinstance(error, LoadError) else ""
    return type(error), str(error), error.kind, error.field, error.retry_after_s, reason


def received(address: Address, status: str, text: str) -> SIEError:
    with pytest.raises(SIEError) as caught, our_errors(address, 1.0):
        raise InferenceServerException(text, status)
    return caught.value


def test_every_kind_is_here():
    assert {case.error.kind for case in [*SENT, CANCELLED]} == set(KINDS)
    assert {case.error.kind for case in [*SENT, CANCELLED, *CLIENTS]} < set(TABLE)
    raised = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SIEError)]
    assert {each.kind for each in raised} - {"unreachable"} <= set(KINDS)


@pytest.mark.parametrize("case", [*SENT, CANCELLED], ids=name)
def test_it_crosses_triton_unchanged_behind_a_short_prefix(case):
    text = with_prefix(case.error)
    assert text == f"{case.prefix}{case.error}"
    assert case.error.code == case.triton
    grpc, http = STATUSES[case.triton]
    for address, status in ((GRPC, grpc), (HTTP, http)):
        for framed in (text, f"in ensemble 'org__name', {text}"):
            assert described(received(address, status, framed)) == described(case.error)


@pytest.mark.parametrize("case", [*SENT, CANCELLED], ids=name)
def test_it_crosses_processes_unchanged(case):
    assert described(pickle.loads(pickle.dumps(case.error))) == described(case.error)
    assert described(Failed.of(case.error).error()) == described(case.error)


@pytest.mark.parametrize("case", [*SENT, *CLIENTS], ids=name)
def test_the_door_answers_it_in_every_dialect(case):
    failure, message = failure_of(case.error), str(case.error)
    answers = [failure_response(failure, dialect) for dialect in (SIE, OPENAI, COHERE, TEI)]
    assert tuple(answer.status_code for answer in answers) == case.statuses
    retry = None if case.error.retry_after_s is None else str(case.error.retry_after_s)
    assert [answer.headers.get("Retry-After") for answer in answers] == [retry] * 4
    more = failure.more
    bodies = [json.loads(answer.body) for answer in answers]
    param = {"text[2]": "input", "": None}.get(case.error.field, case.error.field)
    code = case.code.lower()
    assert bodies == [
        {"detail": {"code": case.code, "message": message, **more}},
        {"error": {"message": message, "type": case.openai_type, "param": param, "code": code, **more}},
        {"message": message, "detail": message, "code": case.code, **more},
        {"error": message, "error_type": case.tei_type},
    ]
    is_final = case.statuses[1] >= 500 and retry is None
    assert answers[1].headers.get("X-Should-Retry") == ("false" if is_final else None)


def test_a_cancelled_request_gets_a_neutral_message():
    failure = failure_of(CANCELLED.error)
    assert (failure.message, failure.row.code, failure.retry_after_s) == (
        "the request was cancelled",
        CANCELLED.code,
        2,
    )


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        ("StatusCode.NOT_FOUND", "Request for unknown model: '[busy] x' is not found", NotServed),
        ("404", "Request for unknown model: 'x' version 7 is not found", NotServed),
        ("StatusCode.UNAVAILABLE", "Request for unknown model: 'x' has no available versions", NotServed),
        ("503", "[request id: <id_unknown>] Exceeds maximum queue size", BusyError),
        ("StatusCode.INVALID_ARGUMENT", "[request id: busy] unexpected shape for input 'text'", InputError),
        ("500", "in ensemble 'x', Stub process 'x-inference' is not healthy.", StageDied),
        ("StatusCode.INTERNAL", "in ensemble 'x', it broke", ModelError),
        ("500", "it broke", ModelError),
        ("StatusCode.CANCELLED", "gone", Cancelled),
        ("StatusCode.UNKNOWN", "a', b", SIEError),
        ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded", DeadlinePassed),
        ("StatusCode.RESOURCE_EXHAUSTED", "Received message larger than max", SIEError),
    ],
)
def test_errors_of_triton_itself_are_told_by_its_status(status, text, kind):
    address = GRPC if status.startswith("StatusCode") else HTTP
    error = received(address, status, text)
    assert type(error) is kind
    assert kind is DeadlinePassed or str(error) == text.removeprefix("in ensemble 'x', ")


@pytest.mark.parametrize(
    "text",
    [
        "[newer retry=1] what is this",
        "[busy retry=] x",
        "[busy retry=1]x",
        "[busy  retry=1] x",
        "[busy retry=12345678901] x",
        "[busy field=a b] x",
        " [busy] x",
        "[BUSY] x",
        "[busy",
        "[request id: [busy retry=1] x] unexpected shape",
        "x [busy] y",
    ],
)
def test_a_malformed_prefix_is_text(text):
    error = received(GRPC, "StatusCode.INVALID_ARGUMENT", text)
    assert described(error) == (InputError, text, "input", "", None, "")


HOSTILE = ["x] [busy retry=9", "x retry=9", "x\n[busy] y", "a" * 200, "ä", "x] ", "", "]", "x]"]


@pytest.mark.parametrize("given", HOSTILE)
def test_a_clients_words_are_never_taken_for_the_prefix(given):
    error = InputError.at(f"parameter {given}", f"[busy retry=3] {given} is unknown")
    text = with_prefix(error)
    assert len(text) - len(str(error)) <= 120
    got = received(GRPC, "StatusCode.INVALID_ARGUMENT", f"in ensemble 'x', {text}")
    assert (type(got), str(got), got.retry_after_s) == (InputError, str(error), None)
    assert got.field in ("", given)


def test_a_text_that_is_no_unicode_is_escaped():
    text = with_prefix(InputError.at("x", "\ud800 is unknown"))
    assert text.encode() == b"[input field=x] x: \\ud800 is unknown"


def test_a_stages_error_is_known_as_such():
    for text, is_of_it in (("in ensemble 'x', [busy retry=5] y", True), ("Exceeds maximum queue size", False)):
        assert is_of_a_step(received(GRPC, "StatusCode.UNAVAILABLE", text)) is is_of_it


@pytest.mark.parametrize(
    ("kind", "statuses", "tei_type"),
    [
        ("unauthorized", (401, 401, 401, 401), "Validation"),
        ("too_slow", (408, 408, 408, 408), "Validation"),
        ("too_large", (413, 413, 413, 413), "Validation"),
        ("media_type", (415, 415, 415, 415), "Validation"),
        ("fault", (500, 500, 500, 424), "Backend"),
    ],
)
def test_the_doors_own_failures(kind, statuses, tei_type):
    answers = [failure_response(Failure(kind, "…"), dialect) for dialect in (SIE, OPENAI, COHERE, TEI)]
    assert tuple(answer.status_code for answer in answers) == statuses
    assert json.loads(answers[3].body)["error_type"] == tei_type


@pytest.mark.parametrize("case", [*SENT, CANCELLED, *CLIENTS], ids=name)
def test_the_documentation_has_the_doors_table(case):
    kind = "load.REASON" if isinstance(case.error, LoadError) else case.error.kind
    page = (Path(__file__).parents[3] / "docs/failures.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
    _, _, _, triton, exception, code, sie, both, tei, _, _ = [cell.strip() for cell in line.split("|")]
    assert triton == (case.triton or {"not_served": "NOT_FOUND"}[kind])
    assert exception.startswith(f"`{type(case.error).__name__}`")
    assert (code, tuple(map(int, (sie, both, both, tei)))) == (case.code, case.statuses)
