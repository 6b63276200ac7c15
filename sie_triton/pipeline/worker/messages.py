"""Messages between a stage and its worker.

The control channel carries Load, answered by Loaded or Failed, and then AddLora and RemoveLora, one at a time, each
answered by Done or Failed; the worker ends when it closes. Each lane carries Forward, one at a time, each answered by
PassResult or Failed. A process that gets WriteTokenizer in place of Load ends after its answer, Done or Failed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines import IN_FORK_SERVER
from sie_triton.engines.measurements import Measurements, installed_versions
from sie_triton.errors import ModelError, SIEError, error_of
from sie_triton.models.environments.venv import Venv
from sie_triton.models.families import family
from sie_triton.system.processes.channel import Channel, sent_by_fields
from sie_triton.system.processes.fork_server import fork_server_directory


@dataclass(frozen=True, slots=True)
class Load:
    """The first message to a worker: the model to load, and how."""

    spec: str  # a ModelSpec as JSON
    directory: Path
    device: str
    measurements_dir: Path  # of this server, or of several
    lock: Path  # file that the worker locks while weights are in memory, so that there are never two copies
    num_lanes: int
    threads: int  # CPU threads of each lane
    environment: Venv | None = None  # None: that of the stage
    makes_graphs: bool = False  # make faster graphs of the encoders in the background, in `graphs_dir`
    graphs_dir: Path = Path()

    @property
    def graphs(self) -> Path:
        """Directory of the graphs of exactly this model."""
        return self.graphs_dir / self.measurements().name

    @property
    def fork_server(self) -> Path | None:
        """Directory of the fork server for this model; None if its engine cannot use one."""
        if ModelSpec.from_json(self.spec).engine not in IN_FORK_SERVER:
            return None
        return fork_server_directory(self.lock.parent, self.environment.name if self.environment else "")

    @property
    def weight_files(self) -> tuple[str, ...]:
        """Glob patterns of the weight files."""
        spec = ModelSpec.from_json(self.spec)
        own = f"{spec.onnx_file}*" if spec.onnx_file else "*.safetensors"
        return (own, *family(spec.family).files)

    def files(self) -> set[Path]:
        """Return the weight files that exist."""
        found = (path for pattern in self.weight_files for path in self.directory.rglob(pattern))
        return {path for path in found if path.is_file()}

    def measurements(self) -> Measurements:
        """Open the measurements of this model, with these settings, on this machine."""
        spec = ModelSpec.from_json(self.spec)
        runtime = spec.runtime
        settings = [
            "cpu" if self.device == "cpu" else "cuda:0",  # the GPUs of a server share what was measured on one
            spec.engine,
            runtime.precision,
            runtime.attention_backend,
            str(spec.max_sequence_length),
        ]
        settings += [spec.batch_cost, spec.family, json.dumps(spec.options, sort_keys=True)]
        files = ("*.json", *self.weight_files)
        # Name and creation time identify an environment's packages, in the stage as in the worker.
        versions = [spec.environment, self.environment.made] if self.environment else installed_versions()
        return Measurements.of(
            self.measurements_dir,
            spec.model,
            self.directory,
            settings,
            files,
            versions=versions,
            redo=runtime.recalibrate,
        )


@dataclass(frozen=True, slots=True)
class WriteTokenizer:
    """Order to write the tokenizer that transformers makes of `files`, which are given by name, into `target`."""

    files: Mapping[str, Path]
    target: Path
    arguments: Mapping[str, Any]  # for the library, beside those in the files
    around: Mapping[str, bool] = field(default_factory=dict)  # add_bos_token and add_eos_token, if they count
    append_eos: bool = False  # texts end with the end token in any case


@dataclass(frozen=True, slots=True)
class Loaded:
    """Answer to Load."""

    limits: Mapping[str, int]  # integer features → their maxima
    max_length: int  # of an item
    weights_bytes: int
    sub_batch_cost: int  # 0 without calibration
    seconds: Mapping[str, float] = field(default_factory=dict)  # duration of each phase
    device_bytes: int = 0  # of GPU memory
    cost_per_s: float = 0.0  # that one lane computes, as calibrated; 0: unknown
    least_s: float = 0.0  # of its shortest pass
    need_bytes: int = 0  # unshared main memory of the worker at rest; 0 on a GPU
    pass_bytes: int = 0  # memory that the passes of all lanes take at most; 0 on a GPU


@dataclass(frozen=True, slots=True)
class AddLora:
    """Load the LoRA adapter in `directory` under `name`, while forward passes continue."""

    name: str
    directory: Path


@dataclass(frozen=True, slots=True)
class RemoveLora:
    """Free a LoRA adapter that no forward pass uses any more."""

    name: str


@dataclass(frozen=True, slots=True)
class Done:
    """Answer to an order. `num_bytes` is the memory of the added adapter; `device_bytes` is as in Loaded."""

    num_bytes: int = 0
    device_bytes: int = 0


@sent_by_fields
@dataclass(frozen=True, slots=True)
class Forward:
    """Request to compute one pass of `batch` with `threads` CPU threads."""

    batch: Batch
    threads: int


@dataclass(frozen=True, slots=True)
class Quickened:
    """Notice that passes of up to `max_tokens` are faster from now on; that takes `num_bytes` more memory.

    Making or opening the graphs took from `started_ns` to `ended_ns`, in monotonic nanoseconds of this machine.
    """

    max_tokens: int
    num_bytes: int
    started_ns: int = 0
    ended_ns: int = 0


@sent_by_fields
@dataclass(frozen=True, slots=True)
class PassResult:
    """Result of a pass; the receiver owns the arrays."""

    rows: Rows
    quickened: Quickened | None = None  # once, with a pass after the change
    device_bytes: int = 0  # as in Loaded; 0 if it is as reported before, or has not been read


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer on failure: an error, field by field; `kind` is one of errors.KINDS, `message` is for clients."""

    message: str
    kind: str = ModelError.kind
    field: str = ""
    retry_after_s: int | None = None

    @classmethod
    def of(cls, error: SIEError) -> "Failed":
        return cls(str(error), error.kind, error.field, error.retry_after_s)

    def error(self) -> SIEError:
        return error_of(self.kind, self.message, self.field, self.retry_after_s)


sent_by_fields(Batch)

OUT_OF_MEMORY = "out of memory"

# Channel types of the stage, then of the worker.
Order = AddLora | RemoveLora
Control = Channel[Load | WriteTokenizer | Order, Loaded | Done | Failed]
LaneChannel = Channel[Forward, PassResult | Failed]
WorkersControl = Channel[Loaded | Done | Failed, Load | WriteTokenizer | Order]
WorkersLane = Channel[PassResult | Failed, Forward]
