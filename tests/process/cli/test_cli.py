import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["click", "pydantic_settings"])
def test_the_cli_names_packages_missing_from_a_client_only_install(missing):
    program = f"import sys; sys.modules[{missing!r}] = None; from sie_triton.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = f"error: the command line needs {missing}: pip install 'sie-triton[server,embedded]'\n"
    assert (done.returncode, done.stderr) == (1, expected)


NAMELESS = """
import pwd, sys
def getpwuid(uid):
    raise KeyError(uid)
pwd.getpwuid = getpwuid
from sie_triton.cli import main
sys.argv[1:] = ["config"]
main()
"""


def test_a_user_without_a_name_and_a_home_directory_has_the_root_directory():
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0
    assert "/.cache/sie-triton" in done.stdout.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "~no-such-user/model"],
        ["models", "init", "~no-such-user/model"],
        ["lora", "add", "my/model", "a", "~no-such-user/x"],
    ],
)
def test_a_home_directory_of_no_user_is_one_line(arguments):
    done = subprocess.run([sys.executable, "-m", "sie_triton.cli", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith(("error: ", "Error: "))] != []
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class CtrlC:
    def find_spec(self, name, *_):
        if name == {!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
from sie_triton.cli import main
sys.argv[1:] = ["serve"]
main()
"""


@pytest.mark.parametrize("module", ["click", "sie_triton.pipeline.render.refresh"])
def test_ctrl_c_while_modules_are_imported_ends_silently(module):
    program = INTERRUPTED.format(module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_is_left_alone_by_the_imports():
    program = "import signal, sie_triton.cli; print(repr(signal.getsignal(signal.SIGINT)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "default_int_handler" in done.stdout or "SIG_IGN" in done.stdout
