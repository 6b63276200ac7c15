"""Which LoRA adapters the requests of a model may name, and where each is.

    model file                                         ModelSpec.loras
    sie-triton lora add → a JSON file, name → where    read again whenever it has changed
    request: any id of the hub                         with SIE_ALLOW_CLIENT_LORA

Where an adapter is: a directory, `package://module/path` or `hub://org/name[@revision]`.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sie_triton.contract import shown
from sie_triton.contract.verb import LONGEST_LORA
from sie_triton.errors import InputError
from sie_triton.private import private_directory
from sie_triton.spec import ModelSpec

NAME = re.compile(r"\w[\w./-]*", re.ASCII)

# Of an adapter as PEFT saves it.
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

HUB, PACKAGE = "hub://", "package://"
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w.-]*)?", re.ASCII)
PATHS = ("/", "./", "../", "~")

# An error names no more of them.
MAX_NAMED = 20


def check_name(name: str) -> str:
    """What an adapter may be called; ValueError says what is allowed.

    >>> check_name("org/banking-v1.2")
    'org/banking-v1.2'
    """
    if len(name) > LONGEST_LORA or not NAME.fullmatch(name):
        raise ValueError(
            f"must be 1 to {LONGEST_LORA} letters a to z, digits, _, ., - and /, with a letter, digit or _ first"
        )
    return name


def source_of(text: str) -> str:
    """Where the adapter is that somebody gives as `text`; ValueError says what is allowed.

    >>> source_of("org/name@v1"), source_of("./adapters/banking")
    ('hub://org/name@v1', './adapters/banking')
    """
    if is_hub_id(text.removeprefix(HUB)):
        return HUB + text.removeprefix(HUB)
    if text.startswith(PATHS) or (text.startswith(PACKAGE) and text != PACKAGE):
        return text
    raise ValueError(
        f"must be an id of the model hub (org/name, org/name@revision), {PACKAGE}module/path, or a directory "
        f"that begins with {', '.join(PATHS[:-1])} or {PATHS[-1]}"
    )


def is_hub_id(text: str) -> bool:
    """
    >>> is_hub_id("org/name@main"), is_hub_id("org/name/x"), is_hub_id("../name")
    (True, False, False)
    """
    return len(text) <= LONGEST_LORA and HUB_ID.fullmatch(text) is not None


class KnownLoras:
    """The adapters that requests of one model may name.

    Holds what was added to the running server as it was when it was last asked for: a question costs one stat. Any
    thread may ask.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        directory = spec.runtime.loras_dir
        self._path = added_path(Path(directory), spec.model) if directory else None
        self._read: tuple[object, Mapping[str, str]] = None, {}

    def source(self, name: str) -> str:
        """Where the adapter of that name is; InputError where the model has none, with what it has."""
        found = self._spec.loras.get(name) or self._added().get(name)
        if found is None and self._spec.runtime.allow_client_lora and is_hub_id(name):
            return HUB + name
        if found is None:
            raise InputError(f"parameter lora: {shown(name)} is no adapter of {self._spec.model}{self._remedy(name)}")
        return found

    def holds(self, source: str) -> bool:
        """True if requests may use the adapter at `source`, under any name."""
        is_clients = self._spec.runtime.allow_client_lora and source.startswith(HUB)
        return is_clients or source in self._spec.loras.values() or source in self._added().values()

    def names(self) -> tuple[str, ...]:
        """In the order of the alphabet."""
        return tuple(sorted({*self._spec.loras, *self._added()}))

    def _added(self) -> Mapping[str, str]:
        if self._path is None:
            return {}
        try:
            found = os.stat(self._path)
        except OSError:
            return {}
        stamp = found.st_ino, found.st_mtime_ns, found.st_size
        if stamp != self._read[0]:
            self._read = stamp, read(self._path)
        return self._read[1]

    def _remedy(self, name: str) -> str:
        names = self.names()
        known = ", ".join(names[:MAX_NAMED]) + (f", … ({len(names)} in all)" if len(names) > MAX_NAMED else "")
        said = f"; give one of {known}" if names else ", which has none"
        if self._path is not None:
            said += f"; sie-triton lora add {self._spec.model} NAME SOURCE adds one"
        if is_hub_id(name):
            said += "; ids of the hub are taken from requests where SIE_ALLOW_CLIENT_LORA is true"
        return said


def added_path(directory: Path, model: str) -> Path:
    """The file of what was added to a running server; `model` is its name, Triton's or ours."""
    return directory / f"{model.replace('/', '__')}.json"


def read(path: Path) -> dict[str, str]:
    """Name → where; nothing where no such file is."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {name: where for name, where in found.items() if isinstance(where, str)}
    return {}


def add(path: Path, name: str, source: str) -> bool:
    """In one moment for all who read; whether it was there. One process at a time. OSError."""
    found = read(path)
    _write(path, {**found, name: source})
    return name in found


def remove(path: Path, name: str) -> bool:
    """As `add`."""
    found = read(path)
    if found.pop(name, None) is None:
        return False
    if found:
        _write(path, found)
    else:
        path.unlink()
    return True


def _write(path: Path, loras: Mapping[str, str]) -> None:
    private_directory(path.parent)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(loras, indent=1), encoding="utf-8")
    fresh.replace(path)
