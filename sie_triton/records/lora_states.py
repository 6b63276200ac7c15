"""LoRA adapters of a process: a JSON file beside its status record, rewritten with each change.

stage → `org__name-inference.<pid>.loras` → controller
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypedDict

from sie_triton.records.revisions import model_of, revision_of
from sie_triton.records.status import process_of, read_record
from sie_triton.system.host.files import write_atomically

State = Literal["loading", "resident", "failed"]

LOADING: Final = "loading"
RESIDENT: Final = "resident"
FAILED: Final = "failed"


class Lora(TypedDict):
    """A LoRA adapter in the record.

    `name`: the name in the latest request; `failure`: why it could not be loaded; `last_used_ns`: monotonic, 0 if never
    used.
    """

    name: str
    state: State
    failure: str
    bytes: int
    last_used_ns: int


# By source, as in ModelSpec.loras: several names may stand for one adapter.
Loras = dict[str, Lora]

FIELDS = Lora.__annotations__.keys()


def write_loras(path: Path, loras: Mapping[str, Lora]) -> None:
    """Replace the file. Raise OSError if that fails."""
    write_atomically(path, json.dumps(loras))


def read_all_loras(directory: Path) -> dict[str, Loras]:
    """Return the adapters of all living processes, by Triton's name of the model.

    If two processes of a model list the same adapter, the newer process counts.
    """
    found: dict[str, list[tuple[int, int, Loras]]] = {}
    for path in directory.glob("*-inference.*.loras"):
        with suppress(OSError, ValueError, RecursionError):
            record, loras = read_record(path.with_suffix(".status")), _read(path)
            if process_of(record).is_alive:
                steps = path.name.rsplit(".", 2)[0].removesuffix("-inference")
                found.setdefault(model_of(steps), []).append((revision_of(steps), record["generation"], loras))
    return {
        model: {
            source: lora
            for *_, loras in sorted(each, key=lambda of_process: of_process[:2])
            for source, lora in loras.items()
        }
        for model, each in found.items()
    }


def read_loras(directory: Path, model: str) -> Loras:
    """Return the adapters of one model."""
    return read_all_loras(directory).get(model, {})


def resident(loras: Mapping[str, Lora]) -> list[Lora]:
    return [lora for lora in loras.values() if lora["state"] == RESIDENT]


def _read(path: Path) -> Loras:
    found: Loras = json.loads(path.read_text())
    if not isinstance(found, dict) or not all(isinstance(x, dict) and x.keys() == FIELDS for x in found.values()):
        raise ValueError(f"{path}: is not a record of LoRA adapters")
    return found
