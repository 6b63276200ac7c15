"""LoRA adapters that the requests of a model may name, and their locations.

    model file                                            ModelSpec.loras
    sie-triton lora add → a JSON file, name → location    read again after each change
    request: any id on the hub                            with SIE_ALLOW_CLIENT_LORA

A location is a directory, `package://module/path` or `hub://org/name[@revision]`.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sie_triton.contract import shown
from sie_triton.contract.limits import LIMITS
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import InputError
from sie_triton.system.host.files import write_atomically
from sie_triton.system.host.private import private_directory

NAME = re.compile(r"\w[\w./-]*", re.ASCII)

# Files of an adapter that PEFT has saved.
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

HUB, PACKAGE = "hub://", "package://"
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w.-]*)?", re.ASCII)
PATHS = ("/", "./", "../", "~")


def check_name(name: str) -> str:
    """Return `name` if an adapter may have it; else ValueError describes the allowed names.

    >>> check_name("org/banking-v1.2")
    'org/banking-v1.2'
    """
    if len(name) > LIMITS.max_lora_characters or not NAME.fullmatch(name):
        raise ValueError(
            f"must be 1 to {LIMITS.max_lora_characters} of the characters a-z, A-Z, 0-9, _, ., - and /, and begin with "
            "a letter, a digit or _"
        )
    return name


def source_of(text: str) -> str:
    """Return the location that `text`, as a user writes it, stands for; ValueError describes the allowed forms.

    >>> source_of("org/name@v1"), source_of("./adapters/banking")
    ('hub://org/name@v1', './adapters/banking')
    """
    if is_hub_id(text.removeprefix(HUB)):
        return HUB + text.removeprefix(HUB)
    if text.startswith(PATHS) or (text.startswith(PACKAGE) and text != PACKAGE):
        return text
    raise ValueError(
        f"must be an id on the model hub (org/name or org/name@revision), {PACKAGE}module/path, or the path of a "
        f"directory that begins with {', '.join(PATHS[:-1])} or {PATHS[-1]}"
    )


def is_hub_id(text: str) -> bool:
    """
    >>> is_hub_id("org/name@main"), is_hub_id("org/name/x"), is_hub_id("../name")
    (True, False, False)
    """
    return len(text) <= LIMITS.max_lora_characters and HUB_ID.fullmatch(text) is not None


class KnownLoras:
    """LoRA adapters that requests of one model may name. Thread-safe.

    Caches the adapters that were added to the running server; each lookup costs one stat of their file.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        directory = spec.runtime.loras_dir
        self._path = added_path(Path(directory), spec.model) if directory else None
        self._read: tuple[object, Mapping[str, str]] = None, {}

    def source(self, name: str) -> str:
        """Return the location of the adapter `name`; if there is none, InputError names the model's adapters."""
        found = self._spec.loras.get(name) or self._added().get(name)
        if found is None and self._spec.runtime.allow_client_lora and is_hub_id(name):
            return HUB + name
        if found is None:
            raise InputError.at(
                "parameter lora", f"{self._spec.model} has no adapter {shown(name)}{self._remedy(name)}"
            )
        return found

    def holds(self, source: str) -> bool:
        """Return True if requests may use the adapter at `source` under any name."""
        is_clients = self._spec.runtime.allow_client_lora and source.startswith(HUB)
        return is_clients or source in self._spec.loras.values() or source in self._added().values()

    def names(self) -> tuple[str, ...]:
        """Return the names of the adapters in alphabetical order."""
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
        known = ", ".join(names[: LIMITS.max_named]) + (
            f", … ({len(names)} in all)" if len(names) > LIMITS.max_named else ""
        )
        said = f"; give one of {known}" if names else "; it has none"
        if self._path is not None:
            said += f"; add one with sie-triton lora add {self._spec.model} NAME SOURCE"
        if is_hub_id(name):
            said += "; requests may name ids on the hub only if SIE_ALLOW_CLIENT_LORA is true"
        return said


def added_path(directory: Path, model: str) -> Path:
    """Return the path of the file with a model's added adapters; `model` is Triton's name of it or ours."""
    return directory / f"{model.replace('/', '__')}.json"


def read(path: Path) -> dict[str, str]:
    """Return name → location from the file; empty if it is absent or unreadable."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {name: where for name, where in found.items() if isinstance(where, str)}
    return {}


def add(path: Path, name: str, source: str) -> bool:
    """Add an adapter atomically; return True if it replaces one of the same name. OSError if the file is not writable.

    Only one process may write at a time.
    """
    found = read(path)
    _write(path, {**found, name: source})
    return name in found


def remove(path: Path, name: str) -> bool:
    """Remove an adapter as `add` adds it; return False if there was none of that name."""
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
    write_atomically(path, json.dumps(loras, indent=1))
