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
    """The first message to a worker: the model to load, and how.

    `spec` is a ModelSpec as JSON; `measurements_dir` the directory of measurements, of this server or of several;
    `threads` the number of CPU threads per lane. `environment` None is that of the stage. The worker locks the file
    `lock` while weights are in memory, so that there are never two copies. With `makes_graphs` it makes faster graphs
    of its encoders in the background, in `graphs_dir`.
    """

    spec: str
    directory: Path
    device: str
    measurements_dir: Path
    lock: Path
    num_lanes: int
    threads: int
    environment: Venv | None = None
    makes_graphs: bool = False
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
    """Order to write the tokenizer that transformers makes of `files`, which are given by name, into `target`.

    `arguments` go to the library beside those in the files. `around` has add_bos_token and add_eos_token if they count.
    With `append_eos`, texts end with the end token in any case.
    """

    files: Mapping[str, Path]
    target: Path
    arguments: Mapping[str, Any]
    around: Mapping[str, bool] = field(default_factory=dict)
    append_eos: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """Answer to Load. `limits` maps integer features to their maxima; `max_length` is the maximum length of an item.

    `sub_batch_cost` is 0 without calibration, `device_bytes` 0 on a CPU. `seconds` is the duration of each phase.
    `cost_per_s`: the cost that one lane computes per second, as calibrated; 0 if it is not known.
    `least_s`: seconds of its shortest pass. `need_bytes`: unshared main memory of the worker at rest; `pass_bytes`:
    memory that the passes of all lanes take at most. Both are 0 on a GPU.
    """

    limits: Mapping[str, int]
    max_length: int
    weights_bytes: int
    sub_batch_cost: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    device_bytes: int = 0
    cost_per_s: float = 0.0
    least_s: float = 0.0
    need_bytes: int = 0
    pass_bytes: int = 0


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
    """Result of a pass; the receiver owns the arrays. `quickened` comes once, with a pass after the change.

    `device_bytes` is as in Loaded; 0 if it is as reported before, or has not been read.
    """

    rows: Rows
    quickened: Quickened | None = None
    device_bytes: int = 0


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
