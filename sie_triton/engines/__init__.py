"""What computes a family's encoder. An engine is one folder, and one line here; nothing here imports its library."""

from collections.abc import Mapping
from importlib import import_module

from sie_triton.engines.base import Encoder, Engine
from sie_triton.errors import LoadError
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec

__all__ = ["ENGINES", "IN_NURSERY", "Encoder", "Engine", "open_engine"]

ENGINES: Mapping[str, str] = {"torch": "sie_triton.engines.torch.engine:TorchEngine"}

# Those whose library the nursery has imported; the workers of others are started by themselves, without it.
IN_NURSERY = frozenset({"torch"})


def open_engine(spec: ModelSpec, device: str, measurements: Measurements) -> Engine:
    """The engine that `spec` names, one of ENGINES or `module:Class`; LoadError where it cannot be imported."""
    module, _, name = ENGINES.get(spec.engine, spec.engine).partition(":")
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise LoadError(f"engine {spec.engine}: cannot be imported ({exc})", "dependency") from exc
    if not (isinstance(kind, type) and issubclass(kind, Engine)):
        raise LoadError(f"engine {spec.engine}: is no sie_triton.engines.Engine", "unsupported")
    return kind(spec, device, measurements)
