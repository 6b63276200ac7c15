"""What a stage and its worker say to each other.

The control channel brings Load, answered by Loaded or Failed, and then one AddLora or RemoveLora after the other, each
answered by Done or Failed; its end ends the worker. Each lane brings one Forward after the other, each answered by
Computed or Failed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sie_triton.contract import Batch, Rows
from sie_triton.engines import IN_NURSERY
from sie_triton.environments.venv import Venv
from sie_triton.errors import ModelError
from sie_triton.families import family
from sie_triton.measurements import Measurements, installed_versions
from sie_triton.processes.channel import Channel, sent_by_fields
from sie_triton.processes.nursery import nursery_directory
from sie_triton.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Load:
    """What to load, where and how.

    `spec` is a ModelSpec as JSON, `cache` where measurements are kept, `threads` those of one lane; `environment` None:
    that of the stage. The worker holds the file `lock` while weights are in memory, so that there are never two copies.
    With `makes_graphs` it looks for faster forms of its encoders when it has some time.
    """

    spec: str
    directory: Path
    device: str
    cache: Path
    lock: Path
    num_lanes: int
    threads: int
    environment: Venv | None = None
    makes_graphs: bool = False

    @property
    def graphs(self) -> Path:
        """Where those of exactly this model are kept."""
        return self.cache.parent / "graphs" / self.measurements().name

    @property
    def nursery(self) -> Path | None:
        """Where there may be one whose workers can compute this."""
        if ModelSpec.from_json(self.spec).engine not in IN_NURSERY:
            return None
        return nursery_directory(self.lock.parent, self.environment.name if self.environment else "")

    @property
    def weight_files(self) -> tuple[str, ...]:
        """Patterns."""
        spec = ModelSpec.from_json(self.spec)
        own = f"{spec.onnx_file}*" if spec.onnx_file else "*.safetensors"
        return (own, *family(spec.family).files)

    def files(self) -> set[Path]:
        """Those of the weights that are there."""
        found = (path for pattern in self.weight_files for path in self.directory.rglob(pattern))
        return {path for path in found if path.is_file()}

    def measurements(self) -> Measurements:
        """What is known of this model, run this way, on this machine."""
        spec = ModelSpec.from_json(self.spec)
        runtime = spec.runtime
        settings = [self.device, spec.engine, runtime.precision, runtime.attention, str(spec.max_sequence_length)]
        settings += [spec.batch_cost, spec.family, json.dumps(spec.options, sort_keys=True)]
        files = ("*.json", *self.weight_files)
        # What is installed there, which is all the same in the stage and in the worker only by its name.
        versions = [spec.environment, self.environment.made] if self.environment else installed_versions()
        return Measurements.of(
            self.cache, spec.model, self.directory, settings, files, versions=versions, redo=runtime.recalibrate
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """`limits`: the largest value of an integer feature, by name; `max_length` that of an item. `sub_batch_cost` is 0
    where it was not calibrated, `device_bytes` on a CPU; `seconds` says what took them.
    """

    limits: Mapping[str, int]
    max_length: int
    weights_bytes: int
    sub_batch_cost: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AddLora:
    """Hold the LoRA adapter in `directory` under that name, while forward passes go on."""

    name: str
    directory: Path


@dataclass(frozen=True, slots=True)
class RemoveLora:
    """Forget it; no forward pass uses it any more."""

    name: str


@dataclass(frozen=True, slots=True)
class Done:
    """`num_bytes` of memory are taken by what was added; `device_bytes` is as in Loaded."""

    num_bytes: int = 0
    device_bytes: int = 0


@sent_by_fields
@dataclass(frozen=True, slots=True)
class Forward:
    """One pass, with so many CPU threads."""

    batch: Batch
    threads: int


@dataclass(frozen=True, slots=True)
class Quickened:
    """From now on passes of up to `max_tokens` take a faster way, which takes so many bytes of memory."""

    max_tokens: int
    num_bytes: int


@sent_by_fields
@dataclass(frozen=True, slots=True)
class Computed:
    """What a pass gave; the arrays are the receiver's own. `quickened` comes with one pass after it happened."""

    rows: Rows
    quickened: Quickened | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """`message` is for clients, `reason` one of errors.REASONS, `code` that of the error of a pass."""

    message: str
    reason: str = "failed"
    code: str = ModelError.code


sent_by_fields(Batch)

OUT_OF_MEMORY = "out of memory"

# As the stage has them, and as the worker does.
Order = AddLora | RemoveLora
Control = Channel[Load | Order, Loaded | Done | Failed]
Lane = Channel[Forward, Computed | Failed]
WorkersControl = Channel[Loaded | Done | Failed, Load | Order]
WorkersLane = Channel[Computed | Failed, Forward]
