"""Processes of a running server: stages share their imports, and no other user reads its secrets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sie_triton.records.status import STAGES
from sie_triton.settings import CONTROL_KEY
from sie_triton.system.processes.fork_server import fork_server_ids
from sie_triton.system.processes.pids import parent_of, represented_pid
from tests.conftest import MINILM
from tests.server.test_launcher import OTHER, command_of
from tests.server.test_serve import descendants

IMPORTED_BYTES = 10_000_000  # at least, of what stages have imported; a stub started by itself shares none of it


def inherited_bytes(pid: int) -> int:
    """Pages of memory, none of a file, that a process still shares with the one it was forked from."""
    (line,) = re.findall(r"^Shared_Dirty: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(line) * 1024


def test_stages_are_forked_and_share_what_they_have_imported(server):
    """Triton starts stand-ins for the stages."""
    (fork_server,) = fork_server_ids(server.settings.stub_dir)
    for stage in STAGES:
        record = server.status(MINILM, stage)
        assert record["triton_pid"] == server.pid
        assert parent_of(record["pid"]) == fork_server.pid
        assert record["pid"] in [represented_pid(pid) for pid in descendants(server.pid)]
        assert inherited_bytes(record["pid"]) > IMPORTED_BYTES


def test_the_control_token_is_visible_in_no_command_line(server):
    visible = [" ".join(command_of(pid)) for pid in (server.pid, *descendants(server.pid))]
    assert len(visible) > 3
    assert [text for text in visible if f"{CONTROL_KEY}=" in text] == []
    assert f"{CONTROL_KEY}=".encode() in Path(f"/proc/{server.pid}/environ").read_bytes()
    assert f"{CONTROL_KEY}=" not in server.log_path.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_reads_neither_arguments_nor_environment(server):
    program = f"""
import os
os.setuid({OTHER})
print(open("/proc/{server.pid}/cmdline").read())
print(open("/proc/{server.pid}/environ").read())
"""
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "--http-port" in other.stdout
    assert f"{CONTROL_KEY}=" not in other.stdout
    assert "PermissionError" in other.stderr
