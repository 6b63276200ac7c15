import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["click", "pydantic_settings"])
def test_a_client_only_install_is_told_what_the_command_line_needs(missing):
    program = f"import sys; sys.modules[{missing!r}] = None; from sie_triton.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = f"error: the command line needs {missing}: pip install 'sie-triton[server,embedded]'\n"
    assert (done.returncode, done.stderr) == (1, expected)
