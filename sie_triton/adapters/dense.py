"""sentence-transformers' Dense modules: a linear layer and its activation each."""

from collections.abc import Sequence
from importlib import import_module

import torch
from safetensors import SafetensorError, safe_open

from sie_triton.errors import LoadError
from sie_triton.weights.modules import DenseLayer


def dense_layers(layers: Sequence[DenseLayer]) -> torch.nn.Sequential:
    """Load them, one after another; LoadError says what is wrong with one."""
    return torch.nn.Sequential(*(module for layer in layers for module in _modules(layer)))


def _modules(layer: DenseLayer) -> list[torch.nn.Module]:
    linear = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias)
    try:
        with safe_open(layer.directory / "model.safetensors", "pt") as weights:
            # Stanford's ColBERT keeps its encoder in the same file.
            names = [name for name in weights.keys() if name.startswith("linear.")]  # noqa: SIM118
            linear.load_state_dict({name.removeprefix("linear."): weights.get_tensor(name) for name in names})
    except (OSError, KeyError, RuntimeError, SafetensorError) as exc:
        raise LoadError(f"weights in {layer.directory} cannot be loaded: {exc}", "corrupt") from exc
    return [linear, activation(layer.activation)]


def activation(path: str) -> torch.nn.Module:
    """An activation by the dotted name of its class; LoadError unless that is one of torch.nn."""
    module, _, name = path.rpartition(".")
    if not module.startswith("torch.nn."):
        raise LoadError(f"activation {path} is refused; only classes of torch.nn are allowed", "unsupported")
    made: torch.nn.Module = getattr(import_module(module), name)()
    return made
