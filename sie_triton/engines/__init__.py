"""Registry of engines, which compute encoders. An engine is one folder and one line here; its library loads lazily."""

from collections.abc import Mapping

from sie_triton.contract.extension import class_named
from sie_triton.contract.spec import ONNX, REMOTE, TORCH, ModelSpec
from sie_triton.engines.base import Encoder, Engine, Overflow
from sie_triton.engines.measurements import Measurements

__all__ = ["ENGINES", "IN_FORK_SERVER", "Encoder", "Engine", "Overflow", "open_engine"]

ENGINES: Mapping[str, str] = {
    TORCH: "sie_triton.engines.torch.engine:TorchEngine",
    ONNX: "sie_triton.engines.onnx.engine:OnnxEngine",
    REMOTE: "sie_triton.engines.remote.engine:RemoteEngine",
}

# Engines that need the modules that the fork server has imported; workers of other engines start without it.
IN_FORK_SERVER = frozenset({TORCH, ONNX})


def open_engine(spec: ModelSpec, device: str, measurements: Measurements) -> Engine:
    """Return the engine that `spec` names: a key of ENGINES or `module:Class`. Raise LoadError if the import fails."""
    kind = class_named(ENGINES.get(spec.engine, spec.engine), Engine, f"engine {spec.engine}")
    return kind(spec, device, measurements)
