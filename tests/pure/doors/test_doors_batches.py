"""Files and batches at a door: what is refused, what is bounded, what is tried again; no server is behind it."""

import json
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from sie_triton.doors.batches.lines import MAX_BLANK, LineError, check_lines, raw_lines, read_line
from sie_triton.doors.batches.shelf import Shelf, new_id, now
from sie_triton.doors.failures import Failure
from sie_triton.doors.limits import BatchLimits, DoorLimits
from sie_triton.errors import BusyError, InputError, Unreachable
from tests.support.doors import door_of, knock, listening

FAST = BatchLimits(poll_s=0.01, max_pause_s=0.01, sweep_s=0.0)
URL = "/v1/embeddings"
LINE = {"custom_id": "a", "method": "POST", "url": URL, "body": {"model": "org/m", "input": "x"}}


def jsonl(*lines) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def many(number: int) -> bytes:
    return jsonl(*({**LINE, "custom_id": str(i)} for i in range(number)))


# --- lines


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"custom_id": None}, "invalid_custom_id", "custom_id"),
        ({"custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_custom_id", "custom_id"),
        ({"custom_id": 3}, "invalid_custom_id", "custom_id"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"url": "/v1/rerank"}, "url_mismatch", "url"),
        ({"body": "x"}, "invalid_request", "body"),
        ({"priority": 1}, "invalid_request", "priority"),
    ],
)
def test_the_error_of_a_line_names_its_field(changed, code, param):
    with pytest.raises(LineError) as caught:
        read_line(jsonl({**LINE, **changed}), URL, FAST)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"a": "\xff"}', b"[" * 5000, b'{"body": [' + b"{}," * 600_000])
def test_a_line_that_is_no_object_is_named(content):
    with pytest.raises(LineError):
        read_line(content, URL, FAST)


def test_a_file_is_valid_or_has_errors_with_lines(tmp_path):
    def errors_of(content, **limits):
        path = tmp_path / "in.jsonl"
        path.write_bytes(content)
        return check_lines(path, URL, replace(FAST, **limits))

    other = {**LINE, "custom_id": "b"}
    assert errors_of(b"\xef\xbb\xbf" + jsonl(LINE) + b"\r\n  \n" + jsonl(other).strip()) == (2, [])
    for content, line, code in [
        (b"", None, "empty_file"),
        (jsonl(LINE, other, LINE), 3, "duplicate_custom_id"),
        (jsonl(LINE, {**other, "body": {"input": "x" * 999}}), 2, "line_too_long"),
        (many(9), 4, "too_many_tasks"),
        (jsonl(LINE) + b" \n" * (MAX_BLANK + 1), MAX_BLANK + 2, "invalid_json_line"),
    ]:
        _, errors = errors_of(content, line_bytes=500, num_requests=3)
        assert [(each["line"], each["code"]) for each in errors] == [(line, code)]
    assert len(errors_of(b"x\n" * 1000)[1]) == FAST.num_errors


def test_lines_have_their_places_also_after_one_that_is_too_long(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"one\n\n" + b"y" * 5000 + b"\nthree")
    with path.open("rb") as file:
        found = [*raw_lines(file, 100)]
        assert [(raw.number, len(raw.content), raw.end) for raw in found] == [(1, 4, 4), (3, 101, 5006), (4, 5, 5011)]
        file.seek(5006)
        assert [raw.number for raw in raw_lines(file, 100, 3)] == [4]


# --- files


def upload(door, **fields):
    files = {"file": ("in.jsonl", b"x")}
    return knock(door, lambda client: client.post("/v1/files", files=files, data={"purpose": "batch", **fields}))


@pytest.mark.parametrize("fields", [{"purpose": "fine-tune"}, {"purpose": "x" * 999}, {"expires_after[seconds]": "9"}])
def test_another_field_of_a_form_is_refused_and_leaves_nothing(tmp_path, fields):
    door, _ = door_of(data_dir=tmp_path)
    assert upload(door, **fields).status_code == 400
    assert [*(tmp_path / "files" / "all").iterdir()] == []


FORM = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
FILE, PURPOSE, END = FORM % (b"file", b'; filename="f"', b"x"), FORM % (b"purpose", b"", b"batch"), b"--b--\r\n"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (FILE + PURPOSE + END, 200),
        (PURPOSE + FILE + END, 200),
        (PURPOSE + FORM % (b"file", b"", b"x" * 999) + END, 200),
        (PURPOSE + FILE + FILE + END, 400),
        (PURPOSE + FORM % (b"file", b"", b"x") + FILE + END, 400),
        (PURPOSE + PURPOSE + FILE + END, 400),
        (PURPOSE + FILE[:-3], 400),
        (PURPOSE + END, 400),
        (FILE + END, 400),
        (PURPOSE + FORM % (b"file", b'; filename="%b"' % (b"f" * 300), b"x") + END, 400),
        (b"--b\r\nX-A: " + b"a" * 9000 + b"\r\n", 400),
        (b"--b\r\n" + b"X-A: a\r\n" * 20, 400),
        (b"nothing", 400),
    ],
)
@pytest.mark.parametrize("charset", ["", "; charset=undefined", "; charset=unicode_escape"])
def test_a_form_is_a_file_and_its_purpose_in_either_order(tmp_path, caplog, body, status, charset):
    door, _ = door_of(data_dir=tmp_path)
    headers = {"Content-Type": f"multipart/form-data; boundary=b{charset}"}
    answer = knock(door, lambda client: client.post("/v1/files", content=body, headers=headers))
    assert answer.status_code == status
    assert len([*(tmp_path / "files" / "all").iterdir()]) == (2 if status == 200 else 0)
    assert not [line for line in caplog.records if line.name.startswith("python_multipart")]


def test_files_have_bounds_and_tokens_have_shelves_of_their_own(tmp_path):
    few = replace(FAST, num_files=2, file_bytes=4000)
    given = {"auth_mode": "token", "auth_tokens": "one,two", "data_dir": tmp_path, "door_max_file_bytes": 6000}
    door, _ = door_of(DoorLimits(batch=few), **given)

    def ask(method, path, token, **more):
        headers = {"Authorization": f"Bearer {token}"}
        return knock(door, lambda client: client.request(method, path, headers=headers, **more))

    def sent(size, token="one"):
        return ask("POST", "/v1/files", token, files={"file": ("f", b"x" * size)}, data={"purpose": "batch"})

    assert sent(5000).status_code == 413  # of one file
    assert sent(3500).status_code == 413  # half of SIE_DOOR_MAX_FILE_BYTES is the token's
    first = sent(1000).json()["id"]
    assert sent(500).status_code == 200
    assert sent(5).status_code == 413  # the third
    assert sent(5, "two").status_code == 200
    for path in (f"/v1/files/{first}", f"/v1/files/{first}/content"):
        assert ask("GET", path, "one").status_code == 200
        assert ask("GET", path, "two").status_code == 404
    assert ask("DELETE", f"/v1/files/{first}", "two").status_code == 404
    assert len(ask("GET", "/v1/files", "two").json()["data"]) == 1
    body = {"input_file_id": first, "endpoint": URL, "completion_window": "24h"}
    assert ask("POST", "/v1/batches", "two", json=body).status_code == 404
    assert ask("DELETE", f"/v1/files/{first}", "one").status_code == 200
    assert sent(5).status_code == 200


def test_uploads_in_progress_count_as_files(tmp_path):
    shelf = Shelf(tmp_path, 10_000, replace(FAST, num_files=2))
    with shelf.create(new_id("file-")), shelf.create(new_id("file-")), pytest.raises(Failure) as refused:
        shelf.create(new_id("file-"))
    assert (refused.value.status, len([*tmp_path.iterdir()])) == (413, 2)


def test_batches_opened_at_the_same_time_do_not_raise_their_number_for_long(tmp_path):
    shelf = Shelf(tmp_path, 10_000, replace(FAST, num_batches=2))
    for _ in range(4):
        shelf.write(f"{new_id('batch_')}.json", {})
    shelf.add_batch({"id": new_id("batch_")})
    assert len(shelf.ids("batch_")) == 2


def test_no_file_is_touched_on_the_event_loop(tmp_path, monkeypatch):
    touched = set()

    def watch(name, real):
        def act(path, *given, **more):
            if tmp_path / "files" in path.parents and threading.current_thread() is threading.main_thread():
                touched.add(name)
            return real(path, *given, **more)

        monkeypatch.setattr(Path, name, act)

    for name in ("stat", "unlink", "touch", "iterdir"):
        watch(name, getattr(Path, name))
    door, _ = door_of(data_dir=tmp_path)
    assert upload(door, purpose="x").status_code == 400
    body = {"input_file_id": upload(door).json()["id"], "endpoint": URL, "completion_window": "24h"}

    async def act(client):
        batch = (await client.post("/v1/batches", json=body)).json()["id"]
        for method, path in (("GET", ""), ("GET", f"/{batch}"), ("POST", f"/{batch}/cancel")):
            answer = await client.request(method, f"/v1/batches{path}")
            assert answer.status_code == 200
        return answer

    assert knock(door, act).json()["status"] == "cancelling"
    assert touched == set()


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/files/x", "/v1/batches/x"])
@pytest.mark.parametrize("is_gateway", [True, False])
def test_a_gateway_and_a_door_without_room_say_that_they_keep_no_files(tmp_path, path, is_gateway):
    door, backend = door_of(data_dir=tmp_path, door_max_file_bytes=10 if is_gateway else 0)
    backend.is_beside_server = not is_gateway
    answer = knock(door, lambda client: client.get(path))
    assert answer.status_code == 404
    assert ("gateway" if is_gateway else "SIE_DOOR_MAX_FILE_BYTES") in answer.json()["error"]["message"]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=101", "before=1", "order=asc", "a&" * 40])
def test_parameters_of_a_list_are_checked(tmp_path, query):
    door, _ = door_of(data_dir=tmp_path)
    assert knock(door, lambda client: client.get(f"/v1/batches?{query}")).status_code == 400
    assert knock(door, lambda client: client.get("/v1/batches?after=x")).status_code == 404


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_full_disk_is_answered(tmp_path, monkeypatch, buffering):
    door, _ = door_of(data_dir=tmp_path)
    full = partial(Path("/dev/full").open, "wb", buffering)
    monkeypatch.setattr(Shelf, "create", lambda *_: full())
    answer = upload(door)
    assert (answer.status_code, "Retry-After" in answer.headers) == (429, True)


def test_what_has_expired_or_was_abandoned_is_removed(tmp_path):
    shelf = Shelf(tmp_path, 10_000, FAST)
    kept, expired, abandoned = (new_id("file-") for _ in range(3))
    for id in (kept, expired, abandoned):
        shelf.path(id).write_bytes(b"x")
    shelf.add_file(kept, "", "batch")
    shelf.write(f"{expired}.json", {**shelf.read(kept, "", "file-"), "expires_at": now() - 1})
    os.utime(shelf.path(abandoned), (0, 0))
    os.utime(shelf.path(kept), (0, 0))
    shelf.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept, f"{kept}.json"]


def test_an_id_names_nothing_outside_its_shelf(tmp_path):
    shelf = Shelf(tmp_path / "a", 10, FAST)
    (tmp_path / "file-x.json").write_text("{}")
    for id in ("../file-x", "file-../../file-x", "file-" + "0" * 31 + "/", "batch_" + "0" * 32):
        with pytest.raises(Failure):
            shelf.read(id, "", "file-")


# --- runs


@contextmanager
def running(tmp_path, limits=FAST, **settings):
    door, backend = door_of(DoorLimits(batch=limits), data_dir=tmp_path, **settings)
    with listening(door) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=30) as client:
        yield backend, client


def started(client, content, endpoint=URL):
    file = client.post("/files", files={"file": ("f", content)}, data={"purpose": "batch"}).json()["id"]
    body = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"}
    return client.post("/batches", json=body).json()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def ended(client, batch):
    final = ("completed", "failed", "cancelled", "expired")
    return wait_for(lambda: (found := client.get(f"/batches/{batch['id']}").json())["status"] in final and found)


def test_a_request_is_tried_again_as_long_as_the_server_is_busy(tmp_path):
    with running(tmp_path) as (backend, client):
        backend.failure = BusyError("full")
        batch = started(client, jsonl(LINE))
        wait_for(lambda: len(backend.asked) > 2 * FAST.num_tries)
        backend.failure = None
        assert ended(client, batch)["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


@pytest.mark.parametrize(
    ("error", "num_tries", "status"),
    [(Unreachable("away"), FAST.num_tries, 503), (InputError.at("input", "is bad"), 1, 400)],
)
def test_a_request_that_fails_has_a_line_in_the_error_file(tmp_path, error, num_tries, status):
    with running(tmp_path) as (backend, client):
        backend.failure = error
        batch = ended(client, started(client, jsonl(LINE)))
        (line,) = client.get(f"/files/{batch['error_file_id']}/content").text.splitlines()
    assert (len(backend.asked), json.loads(line)["response"]["status_code"]) == (num_tries, status)
    assert (batch["output_file_id"], batch["request_counts"]["failed"]) == (None, 1)


def test_a_batch_expires_with_the_results_so_far(tmp_path):
    with running(tmp_path, replace(FAST, completion_s=2, num_windows=1, window_requests=1)) as (backend, client):
        backend.seconds = 3600.0
        batch = ended(client, started(client, many(3)))
        assert backend.was_cancelled
    assert (batch["status"], batch["expired_at"] is None) == ("expired", False)


def test_results_beyond_the_room_end_the_batch_and_those_before_are_kept(tmp_path):
    limits, lines = replace(FAST, num_windows=1, window_requests=1), many(40)
    with running(tmp_path, limits, door_max_file_bytes=len(lines) + 6000) as (_, client):
        batch = ended(client, started(client, lines))
        found = client.get(f"/files/{batch['output_file_id']}/content").text.splitlines()
    assert (batch["status"], [each["code"] for each in batch["errors"]["data"]]) == ("failed", ["storage"])
    assert 0 < len(found) == batch["request_counts"]["completed"] < 40


def test_a_door_that_ends_leaves_its_batch_to_the_next(tmp_path):
    with running(tmp_path, replace(FAST, num_windows=1, window_requests=1)) as (backend, client):
        batch = started(client, many(30))
        wait_for(lambda: len(backend.asked) > 3)
        backend.seconds = 3600.0
    with running(tmp_path) as (_, client):
        batch = ended(client, batch)
        found = client.get(f"/files/{batch['output_file_id']}/content").text.splitlines()
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 30)
    assert [json.loads(line)["custom_id"] for line in found] == [str(i) for i in range(30)]
