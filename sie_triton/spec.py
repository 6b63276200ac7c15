"""What a running stage knows of its model: one frozen value, carried in config.pbtxt as JSON.

Standard library only: a cold stage process stays small.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

SPEC_PARAMETER = "sie_spec"

# Larger sub-batches fall out of a CPU's cache: measured in ARCHITECTURE.md.
CPU_SUB_BATCH_COST = 2048


@dataclass(frozen=True, slots=True)
class Runtime:
    """The settings that stages obey, resolved when the repository is rendered.

    `max_sub_batch_cost`, in the model's cost unit, is what the device runs best at once; 0 leaves the
    choice to inference. `status_dir` empty means: a directory of the running tritonserver.
    """

    device: str = "auto"
    precision: str = "float32"
    max_sub_batch_cost: int = 0
    allow_hub: bool = True
    status_dir: str = ""


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

    @property
    def admission_cost(self) -> int:
        """What Triton may queue together: one forward pass, so that the next forms meanwhile."""
        return min(self.max_batch_cost, self.runtime.max_sub_batch_cost or self.max_batch_cost)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        raw: dict[str, Any] = json.loads(text)
        for f in fields(cls):
            if isinstance(raw.get(f.name), list):
                raw[f.name] = tuple(raw[f.name])
        return cls(**{**raw, "runtime": Runtime(**raw["runtime"])})
