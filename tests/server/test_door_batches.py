"""Files and batches of the `openai` package at the door, before a real server."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

from benchmarks.ports import free_ports
from tests.conftest import CROSS_ENCODER, MINILM
from tests.server.conftest import opened
from tests.server.test_door_process import wait_for

FINAL = ("completed", "failed", "cancelled", "expired")


def client_of(url: str, token: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)


@pytest.fixture(scope="module")
def client(door: str) -> Iterator[openai.OpenAI]:
    with client_of(door) as client:
        yield client


def jsonl(bodies, url="/v1/embeddings") -> bytes:
    lines = [{"custom_id": f"id {i}", "method": "POST", "url": url, "body": body} for i, body in enumerate(bodies)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def started(client, content: bytes, endpoint="/v1/embeddings", **options):
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **options)


def ended(client, batch):
    return wait_for(lambda: (found := client.batches.retrieve(batch.id)).status in FINAL and found, seconds=120)


def answers(client, file_id):
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()] if file_id else []


def test_a_batch_answers_what_the_route_answers_and_names_what_fails(client):
    texts = ["hello", "Vines climb.", "蔷薇", "x " * 400]
    bodies = [{"model": MINILM, "input": text} for text in texts]
    bodies += [{"model": MINILM, "input": texts, "dimensions": 8}, {"model": "no/such", "input": "a"}]
    bodies += [{"model": MINILM, "input": "a", "dimensions": 999}]
    batch = started(client, jsonl(bodies), metadata={"corpus": "test"})
    assert (batch.status, batch.endpoint, batch.metadata) == ("validating", "/v1/embeddings", {"corpus": "test"})
    batch = ended(client, batch)
    assert (batch.status, batch.errors) == ("completed", None)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (7, 5, 2)
    found = answers(client, batch.output_file_id)
    assert [each["custom_id"] for each in found] == [f"id {i}" for i in range(5)]
    for each, body in zip(found, bodies, strict=False):
        expected = client.embeddings.create(**body, encoding_format="float")
        response = each["response"]
        assert (response["status_code"], each["error"]) == (200, None)
        ours = np.array([one["embedding"] for one in response["body"]["data"]])
        assert np.allclose(ours, [one.embedding for one in expected.data], atol=1e-5)
        assert response["body"]["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    failed = answers(client, batch.error_file_id)
    told = [(e["custom_id"], e["response"]["status_code"], e["response"]["body"]["error"]["param"]) for e in failed]
    assert told == [("id 5", 404, "model"), ("id 6", 400, "dimensions")]


@pytest.mark.parametrize(
    ("endpoint", "body", "key"),
    [
        ("/v1/rerank", {"model": CROSS_ENCODER, "query": "q", "documents": ["a", "b"]}, "results"),
        ("/v1/score", {"model": CROSS_ENCODER, "text_1": "q", "text_2": ["a", "b"]}, "data"),
    ],
)
def test_other_routes_answer_batches_too(client, endpoint, body, key):
    batch = ended(client, started(client, jsonl([body] * 3, endpoint), endpoint))
    found = answers(client, batch.output_file_id)
    assert [len(each["response"]["body"][key]) for each in found] == [2] * 3


def test_files_are_listed_shown_and_deleted(client):
    made = [client.files.create(file=(f"{i}.jsonl", b"x"), purpose="batch") for i in range(3)]
    ids = [each.id for each in made]
    listed = [each.id for each in client.files.list(purpose="batch", order="asc", limit=2)]  # more than one page
    assert [id for id in listed if id in ids] == ids
    assert (made[0].filename, made[0].bytes, made[0].purpose) == ("0.jsonl", 1, "batch")
    assert client.files.retrieve(ids[0]) == made[0]
    assert client.files.content(ids[0]).content == b"x"
    for id in ids:
        assert client.files.delete(id).deleted
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            ask(ids[0])
        assert caught.value.param == "file_id"


def test_an_invalid_file_fails_the_batch_and_names_the_lines(client):
    good = json.loads(jsonl([{"model": MINILM, "input": "a"}]))
    wrong = [good, good, {**good, "custom_id": "2", "url": "/v1/rerank"}, {**good, "custom_id": "3", "method": "GET"}]
    content = b"".join(json.dumps(each).encode() + b"\n" for each in wrong) + b'{"a": \xff}\nnot json\n'
    batch = ended(client, started(client, content))
    assert batch.status == "failed"
    assert [(each.line, each.code) for each in batch.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "url_mismatch"),
        (4, "invalid_method"),
        (5, "invalid_json_line"),
        (6, "invalid_json_line"),
    ]


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"endpoint": "/v1/chat/completions"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-../../x"}, "input_file_id"),
        ({"metadata": {"a" * 65: "b"}}, "metadata.a"),
    ],
)
def test_an_invalid_field_of_a_batch_is_named(client, changed, param):
    given = {"input_file_id": "x", "endpoint": "/v1/embeddings", "completion_window": "24h"}
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        client.batches.create(**{**given, **changed})
    assert caught.value.param.startswith(param)


ENDLESS = jsonl([{"model": MINILM, "input": f"{i} climbing plants " * 5} for i in range(3000)])


def test_small_requests_pass_and_a_cancelled_batch_keeps_its_results(client):
    batch = started(client, ENDLESS)
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed, seconds=120)
    for text in "abc":
        client.embeddings.create(model=MINILM, input=text)
    with pytest.raises(openai.BadRequestError, match=batch.id):
        client.files.delete(batch.input_file_id)
    assert client.batches.retrieve(batch.id).status == "in_progress"
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch)
    done = batch.request_counts.completed
    assert (batch.status, 0 < done < 3000, batch.cancelling_at is None) == ("cancelled", True, False)
    assert [each["custom_id"] for each in answers(client, batch.output_file_id)] == [f"id {i}" for i in range(done)]
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(batch.id)
    client.files.delete(batch.input_file_id)


def test_another_process_goes_on_when_the_one_that_runs_a_batch_is_killed(server, tmp_path):
    port = free_ports(1)[0]
    content = jsonl([{"model": MINILM, "input": f"{i} climbing plants " * 4} for i in range(1200)])
    with opened(server.settings, door_port=port, door_workers=2) as url, client_of(url) as client:
        batch = started(client, content)
        done = wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed, seconds=120)
        os.kill(owner_of(Path(server.settings.data_dir) / "files" / "lock"), signal.SIGKILL)
        batch = wait_for(lambda: ends(client, batch), seconds=180)
        assert 0 < done < 1200
        assert (batch.status, batch.request_counts.completed) == ("completed", 1200)
        found = answers(client, batch.output_file_id)
    assert [each["custom_id"] for each in found] == [f"id {i}" for i in range(1200)]


def owner_of(lock: Path) -> int:
    """Return the pid of the process that holds the lock."""
    (found,) = {
        int(path.parts[2])
        for path in Path("/proc").glob("[0-9]*/fd/*")
        if is_link_to(path, lock) and "lock:" in (path.parents[1] / "fdinfo" / path.name).read_text()
    }
    return found


def is_link_to(path: Path, target: Path) -> bool:
    try:
        return path.readlink() == target
    except OSError:  # the process has ended, or is another user's
        return False


def ends(client, batch):
    """Return the batch once it has ended; None before, and while its connection was that of the killed process."""
    try:
        found = client.batches.retrieve(batch.id)
    except openai.APIConnectionError:
        return None
    return found if found.status in FINAL else None
