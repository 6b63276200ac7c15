"""Records of held LoRA adapters: only living processes count, and later processes win."""

import pytest

from sie_triton.records.lora_states import read_all_loras, read_loras, resident, write_loras
from sie_triton.records.revisions import steps_name
from sie_triton.records.status import StatusWriter, status_path
from sie_triton.server.data_dir import remove_records
from sie_triton.system.processes.pids import ProcessId


def lora(name="x", state="resident", num_bytes=7, failure=""):
    return {"name": name, "state": state, "failure": failure, "bytes": num_bytes, "last_used_ns": 5}


def process(directory, pid, model="org__m", generation=0, **loras):
    """Write the status and the adapters of a process."""
    writer = StatusWriter(directory, model, "inference", generation)
    writer.record["pid"], writer.record["started"] = ProcessId.of(pid)
    writer._path = writer._path.rename(status_path(directory, model, "inference", pid))
    write_loras(writer.loras_path, loras)
    return writer


def test_the_adapters_that_a_process_writes_are_read(tmp_path, pids):
    loras = {"a": lora(), "b": lora(state="loading"), "c": lora(state="failed", failure="no such directory")}
    process(tmp_path, pids[0], **loras)
    process(tmp_path, pids[1], "org__other", a=lora("y"))
    assert read_loras(tmp_path, "org__m") == loras
    assert read_all_loras(tmp_path) == {"org__m": loras, "org__other": {"a": lora("y")}}
    assert resident(loras) == [loras["a"]]
    assert read_loras(tmp_path, "org__none") == {}
    assert {path.suffix for path in tmp_path.iterdir()} == {".status", ".loras"}


def test_the_latest_process_of_the_latest_revision_gives_the_state_of_an_adapter(tmp_path, pids):
    process(tmp_path, pids[0], steps_name("org__m", 10), generation=1, a=lora("newest"))
    process(tmp_path, pids[1], steps_name("org__m", 9), generation=2, a=lora("middle"), b=lora("middle"))
    process(tmp_path, pids[2], steps_name("org__m", 9), generation=1, b=lora("old"), c=lora("old"))
    found = {source: each["name"] for source, each in read_loras(tmp_path, "org__m").items()}
    assert found == {"a": "newest", "b": "middle", "c": "old"}


def test_adapters_of_an_ended_process_are_not_read(tmp_path, child):
    writer = process(tmp_path, child.pid, a=lora())
    writer.record["started"] += 1  # another process reuses the pid
    assert read_all_loras(tmp_path) == {}
    writer.record["started"] -= 1
    assert read_all_loras(tmp_path)
    child.kill()
    child.wait()
    assert read_all_loras(tmp_path) == {}


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": {"name": "x"}}', "\xff"])
def test_an_invalid_adapter_record_is_ignored(tmp_path, pids, content):
    writer = process(tmp_path, pids[0], a=lora())
    writer.loras_path.write_text(content, encoding="latin-1")
    process(tmp_path, pids[1], "org__other", a=lora())
    assert list(read_all_loras(tmp_path)) == ["org__other"]


def test_adapter_records_are_removed_with_the_status_record(tmp_path, pids):
    process(tmp_path, pids[0], a=lora()).remove()
    assert list(tmp_path.iterdir()) == []
    process(tmp_path, pids[0], a=lora())
    remove_records(tmp_path)
    assert list(tmp_path.iterdir()) == []
