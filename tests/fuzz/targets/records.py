"""Records on disk, which processes of a server write for each other and may leave behind half written or of old."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sie_triton.contract.spec import ModelSpec, MuveraConfig
from sie_triton.engines.measurements import Measurements
from sie_triton.errors import BusyError, InputError, LoadError
from sie_triton.models import known_loras
from sie_triton.models.environments.venv import Venv
from sie_triton.models.weights import hub, local_cache
from sie_triton.records import calls, grants, request_limit, status, traffic
from sie_triton.records import lora_states as lora_records
from sie_triton.records.known_file import KnownFile
from sie_triton.records.preloads import Preloads
from sie_triton.records.serving_file import Served, Serving, read_serving
from sie_triton.system.processes.pids import ProcessId
from tests.fuzz.damage import damaged, one
from tests.fuzz.parameters import CALLS
from tests.fuzz.requests import WRITTEN
from tests.fuzz.target import Target
from tests.fuzz.trees import PLAIN, changed, to_json
from tests.support.stages import spec

MODEL, COMMIT = "org__m", "a" * 40
PID = os.getpid()


@contextmanager
def records(directory: Path) -> Iterator[Target]:
    """Yield the target of the directory of status records: its files, and those of others there."""
    home = directory / "status"
    home.mkdir()
    record = np.zeros(1, status.RECORD)
    record["version"], record["pid"], record["started"] = status.VERSION, *ProcessId.of(PID)
    lora = {"name": "x", "state": "resident", "failure": "", "bytes": 1, "last_used_ns": 0}
    door = f"door-{PID}-{ProcessId.of(PID).started}"
    files = {
        f"{MODEL}-inference.{PID}.status": damaged([record.tobytes()]),
        f"{MODEL}-inference.{PID}-1.status": damaged([record.tobytes()]),
        f"{MODEL}-preprocess.{PID}.status": damaged([record.tobytes(), b""]),
        f"{MODEL}-inference.{PID}.loras": of_document({"hub://org/x": lora}),
        f"{door}.calls": damaged([bytes(calls.NUM_BYTES), b""]),
        f"{PID}.grant": one((b"granted", b"evicted", b"network\nwhy", b"", b"gran", b"x\ny", b"\xff")),
        grants.CONTROLLER_LOCK: one((b"", b"5", b"-1", b"x", b"9" * 40, b"\xff")),
        f"door-x-{PID}.calls": st.just(b""),
        "door-.calls": st.just(b""),
        f"door-{'9' * 30}-1.calls": st.just(b""),
        "x.status": st.just(b""),
        f"{MODEL}@x-inference.5.status": damaged([record.tobytes()]),
    }
    tokens = st.one_of(
        one(CALLS), st.text(max_size=12), one([str(each) for each in PLAIN if not isinstance(each, dict)])
    )
    cases = st.tuples(st.fixed_dictionaries({}, optional=files), tokens)
    yield Target(cases, lambda case: read_records(home, *case), (InputError,))


def of_document(*documents: Any) -> SearchStrategy[bytes]:
    return st.one_of(changed(documents).map(to_json), damaged([to_json(each) for each in documents]))


def read_records(home: Path, files: dict[str, bytes], token: str) -> None:
    """Read the directory as each process of a server does."""
    for path in home.iterdir():
        path.unlink()
    for name, content in files.items():
        (home / name).write_bytes(content)
    found = status.all_records(home)
    for stage in ("inference", "preprocess"):
        status.records_of_revisions(home, MODEL, stage)
        status.StatusReader(home, MODEL, stage).records(0)
    for each in found["inference"].get(MODEL, ()):
        assert isinstance(status.process_of(each).is_alive, bool)
        assert isinstance(status.worker_of(each).is_alive, bool)
    request_limit.OtherModels(home, "x").in_progress()
    Preloads(home, ["org/m"]).num_loading()
    for lora in lora_records.read_all_loras(home).values():
        lora_records.resident(lora)
    status.read_failure(home, MODEL, "inference", PID)
    with suppress(OSError, ValueError):  # as its readers do
        traffic.Traffic().add(status.map_record(home / f"{MODEL}-inference.{PID}.status"))
    grants.controller_runs(home)
    with suppress(LoadError, BusyError):
        grants.answer_in(grants.answer_path(home, PID))
    calls.remove_dead(home)
    if (call := calls.Calls(home, "inference").find(token)) is not None:
        call.is_revoked()
        call.hold()
        call.release()


@contextmanager
def json_files(directory: Path) -> Iterator[Target]:
    """Yield the target of JSON files: what is served and known, what was measured, pinned and fetched."""
    made = replace(spec(model="org/m"), muvera=MuveraConfig())
    serving = Serving(
        ("a.yaml",), {"data_dir": str(directory)}, "/", {"org/m": Served("a.yaml", "2026-01-01T00:00:00Z")}
    )
    readers = {
        "known.json": ({"org/m": made.to_json(), "org/n": "{}"}, read_known),
        "serving.json": (asdict(serving), read_serving_file),
        "measured.json": ({"overhead": 5, "speed": [1.5]}, read_measurements),
        "pin": ({"reference": "org/m@main", "commit": COMMIT, "files": ["a.json"]}, read_pin),
        "names": (["config.json", "model.safetensors"], read_names),
        "loras.json": ({"x": "hub://org/x"}, lambda path: known_loras.read(path)),
        "environment.json": ({"name": "x", "packages": ["a"]}, read_environment),
    }
    cases = st.one_of([st.tuples(st.just(name), of_document(document)) for name, (document, _) in readers.items()])

    def run(case: tuple[str, bytes]) -> None:
        name, content = case
        path = directory / name
        path.write_bytes(content)
        readers[name][1](path)

    yield Target(cases, run)


def read_known(path: Path) -> None:
    for text in (KnownFile(path.parent).specs() or {}).values():
        assert isinstance(text, str)


def read_serving_file(path: Path) -> None:
    found = read_serving(path.parent)
    if found is not None:
        assert isinstance(found.models, dict)


def read_measurements(path: Path) -> None:
    found = Measurements(path)
    found.get("overhead")
    found.put(other=1)


def read_pin(path: Path) -> None:
    known = hub._read_pin(path.read_text(errors="replace"), "org/m@main")
    if known.get("files") is not None:
        assert all(isinstance(each, str) for each in known["files"])
        assert isinstance(known["commit"], str)


def read_names(path: Path) -> None:
    kept = path.parent / local_cache.OURS / f"{COMMIT}.files"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(path.read_bytes())
    assert all(isinstance(each, str) for each in local_cache.known_names(path.parent, COMMIT))


def read_environment(path: Path) -> None:
    with suppress(OSError, ValueError):  # as its reader does
        Venv.read(path.parent)


@contextmanager
def specs(directory: Path) -> Iterator[Target]:
    """Yield the target of specifications, which Triton's configurations carry: also of models that are not ours."""
    made = json.loads(replace(spec(model="org/m"), muvera=MuveraConfig()).to_json())
    yield Target(
        of_document(made, *WRITTEN[:3]), lambda text: ModelSpec.from_json(text.decode()), (ValueError, KeyError)
    )
