"""The door's error messages, by source, for errors in the words that each source really uses."""

import asyncio

import httpx
import pytest

from sie_triton.client.failures import SEE_STATUS, not_served
from sie_triton.doors.app import application
from sie_triton.doors.backend import States
from sie_triton.doors.failures import failure_of
from sie_triton.errors import REASONS, InputError, LoadError, Unreachable
from tests.support.doors import door_of, knock, post

LOADS = {
    "not found": ("NOT_FOUND", None),
    "gated": ("GATED", None),
    "corrupt": ("CONFIG", None),
    "unsupported": ("CONFIG", None),
    "dependency": ("DEPENDENCY", None),
    "too large": ("OOM", None),
    "network": ("NETWORK", "30"),
    "out of memory": ("OOM", "60"),
    "failed": ("UNKNOWN", "30"),
    "disk full": ("STORAGE", "60"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_failed_load_reports_its_class_and_permanence(reason):
    door, backend = door_of()
    backend.failure = LoadError("it is not there", reason).refusal("put it there")
    answer = post(door)
    told = answer.json()["detail"]
    assert (answer.status_code, told["code"]) == (502, "MODEL_LOAD_FAILED")
    assert (told["error_class"], answer.headers.get("Retry-After")) == LOADS[reason]
    assert told["permanent"] is (answer.headers.get("Retry-After") is None)


def test_an_internal_error_reveals_no_details(caplog):
    door, backend = door_of()
    backend.failure = ZeroDivisionError("secret/path.py")
    answer = post(door)
    assert (answer.status_code, answer.json()["detail"]["code"]) == (500, "INTERNAL_ERROR")
    assert "secret" not in answer.text
    assert "secret/path.py" in caplog.text


def test_a_message_is_one_line_and_names_the_field():
    failure = failure_of(InputError.at("items[0].text", "must be\n a string"))
    assert (failure.message, failure.field) == ("items[0].text: must be a string", "items[0].text")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/v1/embeddings", "POST"), ("/v1/files", "GET, HEAD, POST"), ("/v1/files/x", "DELETE, GET, HEAD")],
)
def test_the_answer_to_another_method_lists_all_of_the_path(path, allowed):
    door, _ = door_of()
    answer = knock(door, lambda client: client.put(path))
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/encode/a", 405), ("POST", "/nowhere", 404)])
def test_unknown_paths_and_methods_get_errors_of_the_same_shape(method, path, status):
    door, _ = door_of()
    answer = knock(door, lambda client: client.request(method, path))
    assert answer.status_code == status
    assert answer.json()["detail"]["code"] in ("METHOD_NOT_ALLOWED", "NOT_FOUND")


def test_a_draining_door_is_not_ready():
    door, backend = door_of()
    assert knock(door, lambda client: client.get("/readyz")).status_code == 200
    backend.failure = Unreachable("gone")
    assert knock(door, lambda client: client.get("/readyz")).status_code == 503
    backend.failure, door.is_draining = None, True
    assert knock(door, lambda client: client.get("/readyz")).status_code == 503
    assert knock(door, lambda client: client.get("/healthz")).status_code == 200


def test_a_request_in_progress_when_the_server_ends_can_be_retried():
    """uvicorn cancels the tasks of such requests; a client that has disconnected gets nothing."""
    door, backend = door_of()
    backend.seconds = 600

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(application(door))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            request = asyncio.create_task(client.post("/v1/encode/org/m", json={"items": ["a"]}))
            while not backend.asked:
                await asyncio.sleep(0)
            request.cancel()
            return await request

    found = asyncio.run(answer())
    assert (found.status_code, found.headers["Retry-After"]) == (503, "2")
    assert found.json()["detail"]["code"] == "QUEUE_UNAVAILABLE"


def test_the_reason_why_a_model_is_not_served_reaches_the_client(monkeypatch):
    door, backend = door_of()
    states = States({"my/dense": "dense.yaml: tasks occurs twice"}, {}, {}, 0.0)

    async def told() -> States:
        return states

    monkeypatch.setattr(door.served, "states", told)
    for name, message in (
        ("my/dense", "model: my/dense is not served: dense.yaml: tasks occurs twice"),
        ("my/other", f"model: my/other is not served; served models: my/one; {SEE_STATUS}"),
    ):
        backend.failure = not_served(name, ["my/one"])
        answer = post(door, path=f"/v1/encode/{name}")
        assert (answer.status_code, answer.json()["detail"]["code"]) == (404, "MODEL_NOT_FOUND")
        assert answer.json()["detail"]["message"] == message


def test_a_request_keeps_its_clients_valid_trace_id():
    given = {"X-Request-ID": "a" * 128}
    traced = {"traceparent": f"00-{'4' * 32}-{'5' * 16}-01", **given}
    assert post(door_of()[0], headers=given).headers["X-Trace-ID"] == "a" * 128
    assert post(door_of()[0], headers=traced).headers["X-Trace-ID"] == "4" * 32
    for odd in ("a" * 129, "", "a\tb"):
        assert len(post(door_of()[0], headers={"X-Request-ID": odd}).headers["X-Trace-ID"]) == 32
