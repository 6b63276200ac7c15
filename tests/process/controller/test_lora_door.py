"""LoRA adapters of a running server, managed through the controller's door and the command line."""

import json
import math
import re
import threading
from time import monotonic_ns

import pytest
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.controller.commands import ask, show
from sie_triton.models.known_loras import KnownLoras, added_path, read
from sie_triton.records.lora_states import write_loras
from sie_triton.records.serving_file import Served, Serving
from sie_triton.settings import read_settings
from tests.support.controller import admin, stage, status_of, wait_for
from tests.support.stages import spec

PATH = "/v1/models/org__a/loras"
MODELS = {
    "org/a": Served("/m/a.yaml", "2026-01-01T00:00:00+00:00", {"filed": "hub://org/filed", "org/filed": "/filed"}),
    "none": Served("/m/none.yaml", "2026-01-01T00:00:00+00:00"),
}


@pytest.fixture
def served(door, controller, pids):
    """Process of org/a's inference stage; the family of model `none` takes no adapters."""
    process = stage(controller, "org__a", pids[0])
    stage(controller, "none", pids[1])
    wait_for(lambda: controller.models.keys() == {"org__a", "none"})
    controller.changes.files = Serving((), {"data_dir": str(door.data_dir)}, "/", models=MODELS)
    controller.changes._due = math.inf
    return process


@pytest.fixture
def adapter(tmp_path):
    directory = tmp_path / "my adapter"
    directory.mkdir()
    (directory / "adapter_config.json").write_text("{}")
    return directory


def put(door, name, source, path=PATH):
    return status_of(door, path, "PUT", json.dumps({"name": name, "source": str(source)}).encode(), **admin(door))


def delete(door, name, path=PATH):
    return status_of(door, f"{path}/{name}", "DELETE", **admin(door))


def has(process, **loras):
    """Record adapters of a process, used a minute ago: name → source, state and bytes."""
    names = ("state", "bytes", "failure")
    used = {"last_used_ns": monotonic_ns() - 60 * 10**9}
    write_loras(
        process.loras_path,
        {
            source: {"name": name} | dict(zip(names, (*of, ""), strict=False)) | used
            for name, (source, *of) in loras.items()
        },
    )


def listed(door):
    return {lora["name"]: lora for lora in ask(door, PATH)["loras"]}


def test_an_added_adapter_is_known_to_the_stages(door, served, adapter):
    code, text = put(door, "new", adapter)
    assert (code, json.loads(text)) == (200, {"model": "org/a", "name": "new", "done": "added"})
    known = KnownLoras(spec(model="org/a", runtime=read_settings(data_dir=door.data_dir, device="cpu").runtime))
    assert known.source("new") == str(adapter)
    assert json.loads(put(door, "new", "org/new@v2")[1])["done"] == "replaced"
    assert known.source("new") == "hub://org/new@v2"
    assert known.names() == ("new",)


def test_adapter_names_with_slashes_are_added_and_removed_unchanged(door, served):
    for name in ("new", "org/new", "a/b/c.d", "a//b", "a/../b"):
        assert put(door, name, "org/x")[0] == 200
        assert list(read(added_path(door.data_dir / "loras", "org/a"))) == [name]
        assert run(door, "rm", "org/a", name).output == f"org/a: {name}: removed\n"
        assert read(added_path(door.data_dir / "loras", "org/a")) == {}


def test_listed_adapters_have_their_origin_and_state(door, served, adapter):
    put(door, "new", adapter)
    put(door, "moved", "org/second")
    has(
        served,
        filed=("hub://org/filed", "resident", 5000),
        new=(str(adapter), "failed", 0, "no weights in it"),
        moved=("hub://org/first", "resident", 7),
        **{
            "org/mine": ("hub://org/mine", "loading", 0),
            "gone": ("/gone", "resident", 1),
            "org/gone": ("/gone/too", "resident", 1),
        },
    )
    answer = listed(door)
    assert {name: (lora["from"], lora["state"], lora["source"]) for name, lora in answer.items()} == {
        "filed": ("model file", "resident", "hub://org/filed"),
        "gone": ("removed", "resident", "/gone"),
        "org/gone": ("removed", "resident", "/gone/too"),
        "moved": ("added", "cold", "hub://org/second"),
        "new": ("added", "failed", str(adapter)),
        "org/filed": ("model file", "cold", "/filed"),
        "org/mine": ("client", "loading", "hub://org/mine"),
    }
    assert list(answer) == sorted(answer)
    assert (answer["new"]["failure"], answer["filed"]["failure"]) == ("no weights in it", None)
    assert (answer["filed"]["memory_bytes"], answer["moved"]["memory_bytes"]) == (5000, 0)
    assert 59 < answer["filed"]["idle_s"] < 90
    assert answer["org/filed"]["idle_s"] is None


def test_memory_of_adapters_is_counted(door, served, capsys):
    has(served, a=("/a", "resident", 5000), b=("/b", "resident", 700), c=("/c", "loading", 80))
    counted = {model["model"]: (model["num_loras"], model["lora_bytes"]) for model in ask(door, "/v1/models")["models"]}
    assert counted == {"org/a": (2, 5700), "none": (0, 0)}
    assert ask(door, "/v1/models/org__a")["num_loras"] == 2
    _, metrics = status_of(door, "/metrics")
    assert re.findall(r"^(sie_model_lora\w+\{.*) (.*)$", metrics, re.MULTILINE) == [
        ('sie_model_loras{model="none"}', "0.0"),
        ('sie_model_loras{model="org/a"}', "2.0"),
        ('sie_model_lora_bytes{model="none"}', "0.0"),
        ('sie_model_lora_bytes{model="org/a"}', "5700.0"),
    ]
    show(door)
    with_some = capsys.readouterr().out
    has(served)
    show(door)
    assert ("loras" in with_some, "loras" in capsys.readouterr().out) == (True, False)


REFUSED = (
    ("a b", "org/x", 400, r"name: must be 1 to 200 of the characters .* \(given 'a b'\)"),
    ("x" * 201, "org/x", 400, "name: must be 1 to 200 of the characters"),
    ("new", "x", 400, r"source: must be an id on the model hub \(org/name or .* \(given 'x'\)"),
    ("new", "./x", 400, r"source: \./x must begin with /"),
    ("new", "/nowhere/at/all", 400, "source: /nowhere/at/all is not a directory that the server can read"),
    ("new", "/usr", 400, r"source: /usr has no adapter_config\.json; give an adapter's directory"),
    ("new", "/usr\0", 400, "source: must be at most 4096 printable characters"),
    ("new", "/" + "x" * 4096, 400, "source: must be at most 4096 printable characters"),
    ("org/filed", "org/x", 409, r"org/filed comes from the model file /m/a\.yaml; change it there"),
)


def test_an_adapter_that_cannot_be_added_is_refused_and_not_written(door, served):
    for name, source, code, told in REFUSED:
        found, text = put(door, name, source)
        assert (found, len(text.splitlines())) == (code, 1)
        assert re.match(told, text), text
    assert not (door.data_dir / "loras").exists()


def test_an_adapter_that_cannot_be_removed_is_reported(door, served):
    put(door, "new", "org/x")
    assert delete(door, "other") == (404, "'other' was not added to org/a; added are new\n")
    assert delete(door, "org/filed") == (409, "org/filed comes from the model file /m/a.yaml; change it there\n")
    assert delete(door, "x", "/v1/models/nobody/loras")[0] == 404
    assert delete(door, "x", "/v1/models/none/loras")[0] == 409
    assert list(read(added_path(door.data_dir / "loras", "org/a"))) == ["new"]


def test_an_invalid_body_is_refused(door, served):
    wanted = 'body: must be JSON such as {"name": "banking", "source": "org/name"}\n'
    for body in (b"", b"[]", b"{", b'{"name": "a"}', b'{"name": "a", "source": 1}', b"[" * 10**5, b"\xff"):
        assert status_of(door, PATH, "PUT", body, **admin(door)) == (400, wanted)


def test_only_the_operator_adds_and_removes(door, served):
    body = json.dumps({"name": "a", "source": "org/x"}).encode()
    assert status_of(door, PATH, "PUT", body)[0] == 401
    assert status_of(door, f"{PATH}/a", "DELETE")[0] == 401
    assert status_of(door, PATH, "PUT", b"x" * (1024**2 + 1), **admin(door))[0] == 413
    assert status_of(door, PATH)[0] == 200
    assert not (door.data_dir / "loras").exists()


def test_adding_to_an_incapable_or_unserved_model_is_refused(door, controller, served):
    none = "/v1/models/none/loras"
    assert put(door, "a", "org/x", none) == (409, "none: models of its family take no LoRA adapters\n")
    assert ask(door, none) == {"model": "none", "takes_loras": False, "loras": []}
    code, text = put(door, "a", "org/x", "/v1/models/org__b/loras")
    assert (code, text) == (404, "org/b is not served; served models: none, org/a\n")
    controller.changes.files = None
    code, text = put(door, "a", "org/x")
    assert code == 409
    assert "the models of this server cannot be changed" in text


def test_changes_at_once_lose_nothing(door, controller, served):
    names = [f"adapter-{i}" for i in range(16)]
    threads = [threading.Thread(target=controller.loras.add, args=("org__a", name, "org/x")) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read(added_path(door.data_dir / "loras", "org/a"))) == sorted(names)


# --- on the command line


def run(door, *arguments, status=0):
    command = ["lora", *map(str, arguments), "--controller-port", str(door.controller_port)]
    if arguments[0] != "ls":
        command += ["--data-dir", str(door.data_dir)]
    result = CliRunner().invoke(cli, command, env={"COLUMNS": "200"}, catch_exceptions=bool(status))
    assert result.exit_code == status, result.output
    return result


def test_added_listed_and_removed(door, served, adapter, monkeypatch):
    monkeypatch.chdir(adapter.parent)
    assert "org/filed" in run(door, "ls", "org/a").output
    assert run(door, "add", "org/a", "here", "./my adapter").output == f"org/a: here: added, from {adapter}\n"
    assert run(door, "add", "org/a", "there", "my adapter").output == f"org/a: there: added, from {adapter}\n"
    assert run(door, "add", "org/a", "there", "org/x").output == "org/a: there: replaced, from org/x\n"
    has(served, here=(str(adapter), "resident", 3 * 2**20))
    rows = {cells[0]: cells[1:] for line in run(door, "ls", "org/a").output.splitlines() if (cells := cells_of(line))}
    assert rows["here"] == [str(adapter), "added", "resident", "3.0 MiB", "60 s ago"]
    assert rows["there"] == ["hub://org/x", "added", "cold", "", "never"]
    assert rows["filed"] == ["hub://org/filed", "model file", "cold", "", "never"]
    names = [lora["name"] for lora in json.loads(run(door, "ls", "org/a", "--json").output)["loras"]]
    assert names == ["filed", "here", "org/filed", "there"]
    assert run(door, "rm", "org/a", "here").output == "org/a: here: removed\n"
    for name in ("a b?c#d", "ü"):
        assert f"{name!r} was not added to org/a; added are there" in str(
            run(door, "rm", "org/a", name, status=1).exception
        )
    assert "is not a directory that the server can read" in str(
        run(door, "add", "org/a", "x", "./none", status=1).exception
    )


def cells_of(line):
    return [cell.strip() for cell in line.split("│")[1:-1]]
