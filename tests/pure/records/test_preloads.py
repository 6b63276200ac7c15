"""The models that load at start-up, by their status records."""

import subprocess

from sie_triton.records.preloads import Preloads
from sie_triton.records.status import LOADING, RESIDENT, StatusWriter
from sie_triton.system.processes.pids import ProcessId


def test_the_server_waits_for_models_to_preload_once(tmp_path):
    preloaded, other = (StatusWriter(tmp_path, name, "inference", 0) for name in ("org__a", "org__b"))
    preloads = Preloads(tmp_path, ["org/a"])
    preloaded.record["state"] = other.record["state"] = LOADING
    assert preloads.num_loading() == 1
    preloaded.record["state"] = RESIDENT
    assert preloads.num_loading() == 0
    preloaded.record["state"] = LOADING
    assert preloads.num_loading() == 0, "a later load is no start-up"


def test_a_process_that_died_while_it_loaded_is_not_waited_for(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as process:
        record = StatusWriter(tmp_path, "a", "inference", 0).record
        record["pid"], record["started"] = ProcessId.of(process.pid)
        record["state"] = LOADING
        preloads = Preloads(tmp_path, ["a"])
        assert preloads.num_loading() == 1
        process.kill()
    assert preloads.num_loading() == 0
