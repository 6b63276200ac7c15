"""SIE's own SDK, in a Python of its own: it wants 3.12 and numpy 2."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

CALLS = Path(__file__).with_name("sdk_calls.py")


def python() -> Path | None:
    """Python of 3.12 or later that can make environments."""
    found = [shutil.which(f"python3.{minor}") for minor in (12, 13, 14)]
    of_pyenv = sorted(Path.home().glob(".pyenv/versions/3.1[234]*/bin/python"))
    for path in (os.environ.get("SIE_SDK_PYTHON"), *found, *of_pyenv):
        if path and subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0:
            return Path(path)
    return None


class SdkError(Exception):
    """Error that a call of the SDK raised: the name of its class, and its fields."""

    def __init__(self, kind: str, message: str, code: str | None, **more: Any) -> None:
        super().__init__(f"{kind} {code}: {message}")
        self.kind, self.code, self.more = kind, code, more


class Sdk:
    """A client of the SDK in a process, `kind` sync or async: its methods and properties, by their names.

    `on_wait` of a call is called each time that the SDK waits before it tries again; without it, the SDK must not wait.
    `waits` are the server's error codes and the seconds of each wait of the last call.
    """

    def __init__(self, interpreter: Path, kind: str, url: str, api_key: str = "", **headers: str) -> None:
        command = [interpreter, "-P", CALLS, kind, url, api_key, json.dumps(headers)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([*map(str, command)], stdin=pipe, stdout=pipe, text=True)
        self.waits: list[tuple[str, float]] = []

    def __enter__(self) -> "Sdk":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._process.stdin.close()
        assert self._process.wait(60) == 0 or error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any, on_wait: Callable[[], object] | None = None, **options: Any) -> Any:
        self._say({"name": name, "arguments": arguments, "options": options})
        self.waits = []
        while "waits" in (told := json.loads(self._process.stdout.readline(), object_hook=with_arrays)):
            self.waits.append((told["code"], told["waits"]))
            if on_wait is None:
                self._process.kill()
                raise AssertionError(f"the SDK waits: {self.waits}")
            on_wait()
            self._say("")
        if "error" in told:
            raise SdkError(**told["error"])
        return told["result"]

    def _say(self, value: Any) -> None:
        self._process.stdin.write(json.dumps(value, default=of_bytes) + "\n")
        self._process.stdin.flush()


def of_bytes(content: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(content).decode()}


def with_arrays(found: dict[str, Any]) -> Any:
    return np.array(found["values"], found["dtype"]) if found.keys() == {"dtype", "values"} else found
