"""Files that processes of a server write for each other: damaged ones, and those of others, count as absent."""

import json
import os

import pytest

from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.measurements import Measurements
from sie_triton.models import known_loras
from sie_triton.models.environments.venv import RECORD, Venv
from sie_triton.models.weights.hub import _read_pin
from sie_triton.models.weights.local_cache import keep_names, known_names
from sie_triton.records import calls
from sie_triton.records.known_file import FILE as KNOWN
from sie_triton.records.known_file import KnownFile, write_known
from sie_triton.records.serving_file import FILE as SERVING
from sie_triton.records.serving_file import read_serving
from sie_triton.system.processes.pids import ProcessId
from tests.support.limits import full_disk
from tests.support.stages import spec

DEEP = "[" * 100_000
DAMAGED = ("", "{", "[]", "5", "null", '"x"', DEEP, '{"a": ' + DEEP)


@pytest.fixture(params=DAMAGED, ids=lambda text: text[:8])
def text(request):
    return request.param


def test_what_is_known_stays_while_the_file_is_damaged(tmp_path, text):
    known = KnownFile(tmp_path)
    write_known(tmp_path, {"org/m": "{}"})
    assert known.specs() == {"org/m": "{}"}
    (tmp_path / KNOWN).write_text(text)
    os.utime(tmp_path / KNOWN, ns=(1, 1))
    assert known.specs() == {"org/m": "{}"}


def test_measurements_on_a_full_disk_leave_no_file(tmp_path):
    measured = Measurements(tmp_path / "m.json")
    with full_disk():
        measured.put(speed=5)
    assert list(tmp_path.iterdir()) == []
    assert measured.get("speed") == 5
    measured.put(memory=6)
    assert Measurements(tmp_path / "m.json").get("speed") == 5


@pytest.mark.parametrize("models", [5, [], {"m": 5}, {"m": {"source": "x"}}])
def test_a_record_of_models_that_is_none_is_as_good_as_absent(tmp_path, models):
    raw = {"names": [], "settings": {}, "cwd": "/", "models": models, "mentioned": [], "removed": []}
    (tmp_path / SERVING).write_text(json.dumps(raw))
    assert read_serving(tmp_path) is None


def test_a_damaged_record_of_what_is_served_is_as_good_as_absent(tmp_path, text):
    (tmp_path / SERVING).write_text(text)
    assert read_serving(tmp_path) is None


def test_damaged_measurements_are_made_again(tmp_path, text):
    path = tmp_path / "measured.json"
    path.write_text(text)
    measured = Measurements(path)
    assert measured.get("speed") is None
    measured.put(speed=5)
    assert Measurements(path).get("speed") == 5


def test_a_damaged_list_of_adapters_is_empty(tmp_path, text):
    path = tmp_path / "org__m.json"
    path.write_text(text)
    assert known_loras.read(path) == {}


def test_damaged_names_of_files_are_asked_for_again(tmp_path, text):
    keep_names(tmp_path, "c", [])
    next(tmp_path.rglob("c.files")).write_text(text)
    assert known_names(tmp_path, "c") == ()


PIN = {"reference": "org/m", "commit": "c", "files": ["a"]}


@pytest.mark.parametrize("wrong", [{"commit": 5}, {"commit": None}, {"files": 5}, {"files": [5]}, {"files": {}}])
def test_a_damaged_pin_is_made_again(wrong, text):
    assert _read_pin(json.dumps(PIN), "org/m") == PIN
    assert _read_pin(json.dumps({**PIN, "files": None}), "org/m")["commit"] == "c"
    for each in (text, json.dumps({**PIN, **wrong})):
        assert _read_pin(each, "org/m") == {}


def test_the_record_of_an_environment_is_checked(tmp_path, text):
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(ValueError, match="is not the record of an environment"):
        Venv.read(tmp_path)


@pytest.mark.parametrize("wrong", [{"profiles": 5}, {"profiles": [5]}, {"runtime": None}, {"other": 1}, {"muvera": 5}])
def test_a_specification_that_is_none_is_a_value_error(wrong, text):
    made = spec(model="org/m").to_json()
    assert ModelSpec.from_json(made) == spec(model="org/m")
    for each in (text, json.dumps({**json.loads(made), **wrong})):
        with pytest.raises(ValueError, match=r"Expecting|not a spec|many"):
            ModelSpec.from_json(each)


def test_files_of_others_in_the_directory_of_calls_are_left_alone(tmp_path):
    names = ["door-x-1.calls", "door-.calls", "door-1-2-3.calls", "door-1.calls", f"door-1-{'9' * 100}.calls"]
    for name in names:
        (tmp_path / name).touch()
    dead = tmp_path / "door-999999999-1.calls"
    dead.touch()
    own = ProcessId.of(os.getpid())
    alive = tmp_path / f"door-{own.pid}-{own.started}.calls"
    alive.touch()
    calls.remove_dead(tmp_path)
    assert not dead.exists()
    assert alive.exists()
    assert all((tmp_path / name).exists() for name in names)
