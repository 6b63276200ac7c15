"""What a running stage knows of its model: one frozen value, carried in config.pbtxt as JSON.

Standard library only: a cold stage process stays small.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

SPEC_PARAMETER = "sie_spec"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The settings that stages obey, resolved when the repository is rendered.

    Costs are in the model's cost unit (tokens). `max_sub_batch_cost` 0 means: chosen for the
    device. `status_dir` empty means: a directory of the running tritonserver.
    """

    device: str = "auto"
    precision: str = "float32"
    attention_backend: str = "auto"
    max_sub_batch_cost: int = 0
    allow_hub: bool = True
    status_dir: str = ""

    def without_paths(self) -> "Runtime":
        """The same for a repository that will run on another machine."""
        return replace(self, status_dir="")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One profile of one model, resolved.

    `weights` is a directory, `package://module/path` or `hub://org/name[@revision]`. `pooling`
    is None where the model's own files decide. Lengths are in tokens.
    """

    model: str
    weights: str
    family: str
    output_types: tuple[str, ...]
    dense_dim: int
    max_sequence_length: int
    max_batch_cost: int
    batch_cost: str = "tokens"
    pooling: str | None = None
    normalize: bool = True
    profiles: tuple[str, ...] = ("default",)
    runtime: Runtime = Runtime()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        raw: dict[str, Any] = json.loads(text)
        for f in fields(cls):
            if isinstance(raw.get(f.name), list):
                raw[f.name] = tuple(raw[f.name])
        return cls(**{**raw, "runtime": Runtime(**raw["runtime"])})
