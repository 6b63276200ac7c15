import subprocess
import sys

import pytest

from sie_triton.bench.ports import free_ports


@pytest.mark.parametrize("missing", ["click", "pydantic_settings"])
def test_a_client_only_install_is_told_what_the_command_line_needs(missing):
    program = f"import sys; sys.modules[{missing!r}] = None; from sie_triton.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = f"error: the command line needs {missing}: pip install 'sie-triton[server,embedded]'\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_perf_without_a_server_is_one_line():
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "sie_triton.cli", "perf", "my/nope", f"--grpc-port={port}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: grpc://127.0.0.1:{port}: ")
    assert "is the server running" in line
