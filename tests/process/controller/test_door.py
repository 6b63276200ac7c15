"""The controller's HTTP door, on a real socket, and the command line that calls it."""

import asyncio
import json
import math
from concurrent.futures import Future

import httpx
import pytest
from click.testing import CliRunner
from tritonclient.utils import InferenceServerException

from sie_triton.cli import cli
from sie_triton.controller.commands import act, ask, show
from sie_triton.controller.model_control import OutOfService
from sie_triton.controller.token import TOKEN_FILE, admin_token, find_token
from sie_triton.doors.triton import TritonBackend
from sie_triton.errors import ModelLoading, ServerError
from sie_triton.records.change import CONFLICT, UNKNOWN, WRONG, ChangeOutcome, ChangeRefused
from sie_triton.records.known_file import FORWARDED, write_known
from sie_triton.records.serving_file import Served, Serving
from sie_triton.records.status import RESIDENT
from sie_triton.settings import Settings
from tests.support.controller import admin, stage, status_of, wait_for

LONG_NAME = "org__" + "a-very-long-name-of-a-model-" * 3 + "end"


def test_ready_is_what_tritonserver_says(door, control):
    assert status_of(door, "/readyz")[0] == 200
    control.alive = False
    code, text = status_of(door, "/readyz")
    assert code == 503
    assert "tritonserver does not answer" in json.loads(text)["reason"]
    assert status_of(door, "/healthz")[0] == 200


def test_a_wrong_token_of_any_bytes_is_refused(door):
    for token in (b"wrong", "schlüssel".encode(), b"\xff\xfe", b""):
        code, text = status_of(door, "/v1/models/a/evict", "POST", Authorization=b"Bearer " + token)
        assert code == 401
        assert "SIE_ADMIN_TOKEN" in text


@pytest.mark.parametrize("door", [("first", "second")], indirect=True)
def test_with_auth_tokens_a_request_needs_one(door):
    url = f"http://127.0.0.1:{door.controller_port}"
    for path in ("/v1/models", "/v1/models/m", "/v1/models/m/loras", "/metrics"):
        refused = httpx.get(url + path)
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        for wrong in ("Bearer", "Bearer third", "Basic first", "first"):
            assert httpx.get(url + path, headers={"Authorization": wrong}).status_code == 401
        for right in ("first", "second", find_token(door.data_dir, "")):
            assert httpx.get(url + path, headers={"Authorization": f"Bearer {right}"}).status_code in (200, 404)
    assert [httpx.get(f"{url}/{probe}").status_code for probe in ("healthz", "readyz")] == [200, 200]
    assert httpx.post(f"{url}/v1/models/m/load", headers={"Authorization": "Bearer first"}).status_code == 401


def test_foreign_web_pages_are_refused_and_a_path_names_a_model_as_triton_or_sie_does(door, controller):
    stage(controller, "org__m", granted_bytes=100)
    controller.tick()
    models = f"http://127.0.0.1:{door.controller_port}/v1/models"
    for headers, status in (
        ({"Host": "localhost:8003", "Origin": "http://localhost:8003"}, 200),
        ({"Host": "rebound.example:8003"}, 403),
        ({"Host": b"rebound.\xff"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "null"}, 403),
    ):
        for method in ("GET", "PUT"):
            assert httpx.request(method, f"{models}/org__m", headers=headers).status_code == status
    for name in ("org__m", "org/m", "org%2Fm"):
        assert httpx.get(f"{models}/{name}").json()["model"] == "org/m"


@pytest.mark.parametrize("door", [("first",)], indirect=True)
def test_our_own_commands_have_a_token_for_questions(door, monkeypatch, tmp_path):
    assert ask(door, "/v1/models")["models"] == []
    elsewhere = door.model_copy(update={"data_dir": tmp_path / "elsewhere"})
    with pytest.raises(ServerError, match=r"bearer token; give it with .*--admin-token"):
        ask(elsewhere, "/v1/models")
    assert ask(elsewhere.model_copy(update={"auth_tokens": "first"}), "/v1/models")["models"] == []
    reader = Settings(auth_mode="token", auth_tokens="first", controller_port=door.controller_port)
    assert asyncio.run(TritonBackend(reader).states()).memory


@pytest.mark.parametrize("door", [("first",)], indirect=True)
def test_the_list_of_models_is_never_that_of_no_server_because_a_token_is_missing(door, tmp_path):
    command = ["models", "ls", f"--controller-port={door.controller_port}", f"--data-dir={tmp_path / 'elsewhere'}"]
    refused = CliRunner().invoke(cli, command)
    assert isinstance(refused.exception, ServerError)
    assert "--auth-tokens (SIE_AUTH_TOKENS) or --admin-token" in str(refused.exception)
    assert CliRunner().invoke(cli, [*command, "--auth-tokens=first"]).output == ""


def test_a_generated_admin_token_is_read_from_the_data_directory(door, controller, control, child, capsys):
    path = door.data_dir / TOKEN_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    stage(controller, "org__a", child.pid)
    wait_for(lambda: "org__a" in controller.models)
    act(door, "org/a", "evict")
    assert "org/a: evict done" in capsys.readouterr().out
    assert control.swapped == [("org__a-inference", False)]
    path.unlink()
    with pytest.raises(ServerError, match=r"bearer token; give it with .*--admin-token"):
        act(door, "org/a", "evict")


def test_a_given_token_leaves_no_file(tmp_path):
    assert admin_token(tmp_path, "") != admin_token(tmp_path, "")
    assert admin_token(tmp_path, "given") == "given"
    assert not (tmp_path / TOKEN_FILE).exists()


@pytest.mark.parametrize("model", ["a b", "ä", "..", "a?b", "%", "a/b/c"])
def test_odd_model_names_get_a_one_line_error(door, model):
    with pytest.raises(ServerError) as caught:
        act(door, model, "evict")
    assert len(str(caught.value).splitlines()) == 1
    result = CliRunner().invoke(cli, ["evict", model, "--controller-port", str(door.controller_port)])
    assert isinstance(result.exception, ServerError)


def test_load_after_unload_puts_a_model_into_service(door, controller, control, child):
    with pytest.raises(ServerError, match="unloaded is not served"):
        act(door, "unloaded", "evict")
    with pytest.raises(ServerError, match="unheard of is not served"):
        act(door, "unheard of", "load")
    swap = control.swap

    def swapped(name, *, resident=False):
        swap(name, resident=resident)
        stage(controller, "unloaded", child.pid, state=RESIDENT, generation=1)

    control.swap = swapped
    act(door, "unloaded", "load")
    assert control.loaded == ["unloaded"]
    assert control.swapped == [("unloaded-inference", True)]


def test_a_model_that_was_taken_out_of_service_meanwhile_is_a_conflict(door, controller, control, child):
    stage(controller, "org__a", child.pid)
    wait_for(lambda: "org__a" in controller.models)
    control.failure = OutOfService("org__a-inference was taken out of service")
    code, text = status_of(door, "/v1/models/org__a/evict", "POST", **admin(door))
    assert (code, "load it to put it back into service" in text) == (409, True)


def test_loading_without_tritonserver_fails_with_the_reason(door, control):
    control.alive = False
    with pytest.raises(ServerError, match="Triton: connection refused"):
        act(door, "unloaded", "load")


def test_status_shows_whole_names_and_json(door, controller, child, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stage(controller, LONG_NAME, child.pid)
    wait_for(lambda: LONG_NAME in controller.models)
    show(door)
    first = "".join(line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line)
    assert first == LONG_NAME.replace("__", "/")
    show(door, as_json=True)
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["model"] == LONG_NAME.replace("__", "/")


def test_status_names_the_kernels_and_what_would_be_faster(door, controller, capsys, monkeypatch):
    monkeypatch.setitem(controller.machine, "kernels", "none; install [this]")
    monkeypatch.setitem(controller.machine, "speedups", ["install [that]"])
    show(door)
    *_, kernels, faster = capsys.readouterr().out.splitlines()
    assert (kernels, faster) == ("kernels: none; install [this]", "faster: install [that]")
    show(door, as_json=True)
    assert json.loads(capsys.readouterr().out)["kernels"] == "none; install [this]"
    monkeypatch.setitem(controller.machine, "kernels", None)  # on a GPU
    show(door)
    assert "kernels" not in capsys.readouterr().out


# --- changes of models


@pytest.fixture
def asked(controller, monkeypatch):
    """Recorded calls of the changes, and `answer`, which is a ChangeOutcome to return or an exception to raise."""

    class Asked(list):
        answer: object = ChangeOutcome(added=["org__a"], model="org__a")

    made = Asked()

    def change(what):
        made.append(what)
        future = Future()
        future.set_exception(made.answer) if isinstance(made.answer, Exception) else future.set_result(made.answer)
        return future

    monkeypatch.setattr(controller.changes, "add", change)
    monkeypatch.setattr(controller.changes, "remove", change)
    return made


def test_a_model_file_is_added_and_a_model_removed(door, asked):
    code, text = status_of(door, "/v1/models", "PUT", "sie_id: ä".encode(), **admin(door))
    assert (code, json.loads(text)) == (200, {"model": "org/a", "done": "added"})
    code, text = status_of(door, "/v1/models/org__a", "DELETE", **admin(door))
    assert (code, json.loads(text)) == (200, {"model": "org/a", "done": "removed"})
    assert asked == ["sie_id: ä".encode(), "org__a"]


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ChangeRefused(WRONG, "tasks: Field required"), 400, "tasks: Field required"),
        (ChangeRefused(UNKNOWN, "org/a is not served"), 404, "org/a is not served"),
        (ChangeRefused(CONFLICT, "org/a is served from elsewhere"), 409, "org/a is served from elsewhere"),
        (ServerError("reading the model files took too long"), 502, "reading the model files took too long"),
        (InferenceServerException("connection refused"), 502, "Triton: connection refused"),
    ],
)
def test_a_failed_change_has_its_http_status_and_reason(door, asked, error, code, told):
    asked.answer = error
    for request in (("/v1/models", "PUT", b"x"), ("/v1/models/org__a", "DELETE")):
        assert status_of(door, *request, **admin(door)) == (code, f"{told}\n")


def test_changing_models_needs_the_admin_token(door, asked):
    for request in (("/v1/models", "PUT", b"x"), ("/v1/models/org__a", "DELETE")):
        assert status_of(door, *request)[0] == 401
    assert status_of(door, "/v1/models", "PUT", b"x" * (1024**2 + 1), **admin(door))[0] == 413
    assert asked == []


# --- known models


@pytest.fixture
def mentioned(controller, monkeypatch):
    """Recorded names of known models that were asked for, and `error`, which their futures raise."""

    class Mentioned(list):
        error: Exception | None = None

    made = Mentioned()

    def mention(name):
        made.append(name)
        future = Future()
        future.set_exception(made.error) if made.error else future.set_result(None)
        return future

    monkeypatch.setattr(controller.changes, "mention", mention)
    return made


def test_every_client_may_have_a_known_model_served(door, mentioned):
    code, text = status_of(door, "/v1/models/org__a", "PUT")
    assert (code, json.loads(text)) == (200, {"model": "org/a", "done": "served"})
    assert mentioned == ["org/a"]


def test_a_served_model_is_not_asked_for(door, controller, child, mentioned):
    stage(controller, "org__a", child.pid)
    wait_for(lambda: "org__a" in controller.models)
    assert status_of(door, "/v1/models/org__a", "PUT")[0] == 200
    assert mentioned == []


@pytest.mark.parametrize("door", [("first",)], indirect=True)
def test_with_auth_tokens_serving_a_known_model_needs_one(door, mentioned):
    url = f"http://127.0.0.1:{door.controller_port}/v1/models/org__a"
    assert httpx.put(url).status_code == 401
    assert httpx.put(url, headers={"Authorization": "Bearer first"}).status_code == 200
    assert mentioned == ["org/a"]


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ChangeRefused(UNKNOWN, "org/a is not served"), 404, "org/a is not served; served models: none"),
        (ModelLoading("org/a waits"), 503, "org/a waits"),
        (ServerError("reading took too long"), 502, "reading took too long"),
        (InferenceServerException("connection refused"), 502, "Triton: connection refused"),
    ],
)
def test_a_known_model_that_is_not_served_has_its_status_and_reason(door, mentioned, error, code, told):
    mentioned.error = error
    response = httpx.put(f"http://127.0.0.1:{door.controller_port}/v1/models/org__a")
    assert (response.status_code, response.text) == (code, f"{told}\n")
    assert response.headers.get("Retry-After") == ("5" if code == 503 else None)


@pytest.mark.parametrize("controller", [{"mention_wait_s": 0.01}], indirect=True)
def test_a_wait_that_takes_too_long_ends_and_the_others_go_on_waiting(door, controller, monkeypatch):
    future = Future()
    monkeypatch.setattr(controller.changes, "mention", lambda name: future)
    assert status_of(door, "/v1/models/org__a", "PUT") == (503, "org/a waits to be served\n")
    assert not future.cancelled()


def test_load_serves_a_known_model(door, mentioned):
    mentioned.error = ChangeRefused(UNKNOWN, "org/a is not served; similar names: org/b")
    with pytest.raises(ServerError, match="similar names: org/b; served models: none"):
        act(door, "org/a", "load")
    assert mentioned == ["org/a"]


# --- models


def test_models_come_with_their_files_and_problems(door, controller, child):
    since = "2026-01-01T00:00:00+00:00"
    served = {"org/a": Served("/m/a.yaml", since), "org/chat": Served("/m/c.yaml", since)}
    write_known(controller.changes._data_dir, {"org/chat": "{}"}, FORWARDED)
    files = Serving((), {"data_dir": str(door.data_dir)}, "/", models=served, problems={"/m/b.yaml": "not valid YAML"})
    stage(controller, "org__a", child.pid)
    wait_for(lambda: "org__a" in controller.models)
    controller.changes.files = files
    controller.changes._due = math.inf
    answer = ask(door, "/v1/models")
    assert answer["problems"] == {"/m/b.yaml": "not valid YAML"}
    assert answer["forwarded"] == {"org/chat": "/m/c.yaml"}
    assert {name: answer["models"][0][name] for name in ("model", "source", "changed_at")} == {
        "model": "org/a",
        "source": "/m/a.yaml",
        "changed_at": "2026-01-01T00:00:00+00:00",
    }
    listed = CliRunner().invoke(cli, ["models", "ls", "--controller-port", str(door.controller_port)])
    assert listed.stdout.split() == ["org/a", "cold", "/m/a.yaml", "org/chat", "forwarded", "/m/c.yaml"]
    assert listed.stderr == "not served: not valid YAML\n"
    assert answer["unserved"] == {"b": "not valid YAML"}
    text = "b is not served (not valid YAML); served models: org/a\n"
    assert status_of(door, "/v1/models/b") == (404, text)
    controller.changes.serving["org__a"] = ""
    wait_for(lambda: not ask(door, "/v1/models")["models"])
    assert status_of(door, "/v1/models/org__a")[0] == 404
