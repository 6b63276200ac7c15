"""LoRA adapters of a running server: list them with their states, add and remove them.

model file, file of added adapters, the stages' records → GET /v1/models/NAME/loras
PUT, DELETE → file of added adapters → the stages, with the next request that names one
"""

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from time import monotonic_ns
from typing import Any

from sie_triton.contract.names import sie_name
from sie_triton.controller.changes import NO_CHANGES, Changes
from sie_triton.models.known_loras import (
    CONFIG_FILE,
    HUB,
    PATHS,
    add,
    added_path,
    check_name,
    is_hub_id,
    read,
    remove,
    source_of,
)
from sie_triton.records.change import CONFLICT, UNKNOWN, WRONG, ChangeRefused
from sie_triton.records.lora_states import Lora, read_all_loras, read_loras, resident
from sie_triton.records.serving_file import Served

ABSOLUTE = "must begin with /: the server runs in another directory than the client"


class ServedLoras:
    """The LoRA adapters of all models; `model` is Triton's name of a model.

    Any thread may call; changes are made one at a time. Raise ChangeRefused if a change is not possible, and OSError
    if the file cannot be written.
    """

    def __init__(self, added: Path, status: Path, changes: Changes) -> None:
        self._directory, self._status, self._changes = added, status, changes
        self._lock = Lock()

    def in_memory(self) -> dict[str, list[int]]:
        """Return the bytes of each adapter in memory, by model."""
        found = read_all_loras(self._status)
        return {model: [lora["bytes"] for lora in resident(loras)] for model, loras in found.items()}

    def listed(self, model: str) -> dict[str, Any]:
        """Return a model's adapters as JSON, with times in seconds."""
        served, states = self._changes.served(model), read_loras(self._status, model)
        known = {name: (source, "added") for name, source in read(self._path(model)).items()}
        if served and served.loras:
            known |= {name: (source, "model file") for name, source in served.loras.items()}
        sources = {source for source, _ in known.values()}
        for source, lora in states.items():
            if source not in sources and lora["name"] not in known:
                known[lora["name"]] = source, _origin(lora["name"], source)
        rows = [_described(name, *of, states.get(of[0])) for name, of in sorted(known.items())]
        return {"model": sie_name(model), "takes_loras": bool(served and served.loras is not None), "loras": rows}

    def add(self, model: str, name: str, source: str) -> str:
        """Add or replace an adapter; return which of these was done."""
        served = self._taking(model)
        try:
            check_name(name)
        except ValueError as exc:
            raise ChangeRefused(WRONG, f"name: {exc} (given {name[:300]!r})") from exc
        self._check_origin(name, served)
        where = checked_source(source)
        with self._lock:
            return "replaced" if add(self._path(model), name, where) else "added"

    def remove(self, model: str, name: str) -> str:
        self._check_origin(name, self._taking(model))
        with self._lock:
            if not remove(self._path(model), name):
                added = ", ".join(sorted(read(self._path(model)))) or "none"
                raise ChangeRefused(UNKNOWN, f"{name[:300]!r} was not added to {sie_name(model)}; added are {added}")
        return "removed"

    def _taking(self, model: str) -> Served:
        if self._changes.files is None:
            raise ChangeRefused(CONFLICT, NO_CHANGES)
        served = self._changes.served(model)
        if served is None or served.loras is None:
            raise ChangeRefused(CONFLICT, f"{sie_name(model)}: models of its family take no LoRA adapters")
        return served

    def _check_origin(self, name: str, served: Served) -> None:
        if name in (served.loras or {}):
            raise ChangeRefused(CONFLICT, f"{name} comes from the model file {served.source}; change it there")

    def _path(self, model: str) -> Path:
        return added_path(self._directory, model)


def checked_source(text: str, max_characters: int = 4096) -> str:
    """Return the location of an adapter as in ModelSpec.loras; raise ChangeRefused if it is invalid or not there."""
    try:
        source = source_of(os.path.expanduser(text))
    except ValueError as exc:
        raise ChangeRefused(WRONG, f"source: {exc} (given {text[:300]!r})") from exc
    if len(source) > max_characters or not source.isprintable():
        raise ChangeRefused(WRONG, f"source: must be at most {max_characters} printable characters")
    if not source.startswith(PATHS):
        return source
    if not source.startswith("/"):
        raise ChangeRefused(WRONG, f"source: {source} {ABSOLUTE}")
    if not os.path.isdir(source):
        raise ChangeRefused(WRONG, f"source: {source} is not a directory that the server can read")
    if not os.path.isfile(os.path.join(source, CONFIG_FILE)):
        raise ChangeRefused(
            WRONG, f"source: {source} has no {CONFIG_FILE}; give an adapter's directory, as PEFT saves it"
        )
    return source


def _origin(name: str, source: str) -> str:
    """Return the origin of an adapter that a process has but no list contains."""
    return "client" if is_hub_id(name) and source == HUB + name else "removed"


def _described(name: str, source: str, origin: str, known: Lora | None) -> Mapping[str, Any]:
    used = known["last_used_ns"] if known else 0
    return {
        "name": name,
        "source": source,
        "from": origin,
        "state": known["state"] if known else "cold",
        "failure": (known["failure"] or None) if known else None,
        "memory_bytes": known["bytes"] if known else 0,
        "idle_s": round((monotonic_ns() - used) / 1e9, 3) if used else None,
    }
