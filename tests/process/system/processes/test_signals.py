"""The end of a program by a signal."""

import subprocess
import sys

SUPPRESSES = """
import os, signal
from contextlib import suppress
from sie_triton.system.processes.signals import until_signal
with until_signal(lambda name: print(name)):
    with suppress(Exception):
        os.kill(os.getpid(), signal.SIGTERM)
    print("goes on")
"""


def test_code_that_goes_on_after_any_error_does_not_go_on_after_a_signal():
    ended = subprocess.run([sys.executable, "-c", SUPPRESSES], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["SIGTERM"]
