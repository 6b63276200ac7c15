"""sentence-transformers' Dense modules, each a linear layer and an activation."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch

from sie_triton.checkpoints.contents import WEIGHTS
from sie_triton.checkpoints.files import shortened
from sie_triton.checkpoints.modules import DenseLayer
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.errors import LoadError


def dense_layers(layers: Sequence[DenseLayer]) -> torch.nn.Sequential:
    """Load the layers, in order. Raise LoadError if one is missing or invalid."""
    return torch.nn.Sequential(*(module for layer in layers for module in _modules(layer)))


def _modules(layer: DenseLayer) -> list[torch.nn.Module]:
    # Stanford's ColBERT keeps its encoder in the same file.
    weights = Checkpoint(layer.directory, torch.float32, prefix="linear.", files=WEIGHTS).below("linear.")
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    said = {
        "weight": (layer.out_features, layer.in_features),
        **({"bias": (layer.out_features,)} if layer.bias else {}),
    }
    if shapes != said:
        raise LoadError(f"{layer.directory}: the weights are {shapes}, its config.json says {said}", "corrupt")
    # Only after the check: a wrong size in config.json could exhaust memory.
    linear = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias)
    linear.load_state_dict(weights)
    return [linear, activation(layer.activation, layer.directory)]


def activation(path: str, directory: Path) -> torch.nn.Module:
    """Make an activation from the dotted name of its class. Raise LoadError unless torch.nn has it, without arguments.

    `directory` is the layer's, for the message.
    """
    module, _, name = path.rpartition(".")
    refusal = f"{directory}: activation {shortened(path)} is refused; only classes of torch.nn are allowed"
    if not f"{module}.".startswith("torch.nn."):
        raise LoadError(refusal, "unsupported")
    try:
        kind = getattr(import_module(module), name)
        if not issubclass(kind, torch.nn.Module):
            raise LoadError(refusal, "unsupported")
        made: torch.nn.Module = kind()
    except (ImportError, AttributeError, TypeError) as exc:
        raise LoadError(refusal, "unsupported") from exc
    return made
