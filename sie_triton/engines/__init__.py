"""What computes a family's encoder. An engine is one folder, and one line here; nothing here imports its library."""

from collections.abc import Mapping

from sie_triton.engines.base import Encoder, Engine, Overflow
from sie_triton.extension import class_named
from sie_triton.measurements import Measurements
from sie_triton.spec import ONNX, REMOTE, TORCH, ModelSpec

__all__ = ["ENGINES", "IN_NURSERY", "Encoder", "Engine", "Overflow", "open_engine"]

ENGINES: Mapping[str, str] = {
    TORCH: "sie_triton.engines.torch.engine:TorchEngine",
    ONNX: "sie_triton.engines.onnx.engine:OnnxEngine",
    REMOTE: "sie_triton.engines.remote.engine:RemoteEngine",
}

# Those that need what the nursery has imported; the workers of others are started by themselves, without it.
IN_NURSERY = frozenset({TORCH, ONNX})


def open_engine(spec: ModelSpec, device: str, measurements: Measurements) -> Engine:
    """The engine that `spec` names, one of ENGINES or `module:Class`; LoadError where it cannot be imported."""
    kind = class_named(ENGINES.get(spec.engine, spec.engine), Engine, f"engine {spec.engine}")
    return kind(spec, device, measurements)
