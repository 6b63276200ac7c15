"""sentence-transformers' Dense modules, each a linear layer and an activation."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import torch

from sie_triton.checkpoints.contents import PICKLE, WEIGHTS
from sie_triton.checkpoints.files import first_line, has_file, shortened
from sie_triton.checkpoints.modules import DenseLayer
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.errors import LoadError


def dense_layers(layers: Sequence[DenseLayer]) -> torch.nn.Sequential:
    """Load the layers, in order. Raise LoadError if one is missing or invalid."""
    return torch.nn.Sequential(*(module for layer in layers for module in _modules(layer)))


def _modules(layer: DenseLayer) -> list[torch.nn.Module]:
    weights = _weights(layer.directory)
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


def _weights(directory: Path) -> Mapping[str, torch.Tensor]:
    if not has_file(directory / WEIGHTS) and has_file(directory / PICKLE):
        return _unpickled(directory / PICKLE)
    # Stanford's ColBERT keeps its encoder in the same file.
    return Checkpoint(directory, torch.float32, prefix="linear.", files=WEIGHTS).below("linear.")


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    """Load a pickle of sentence-transformers before 2.3. It may hold only tensors; none of its code is run."""
    try:
        weights: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {name: weight for name, weight in weights.items() if isinstance(weight, torch.Tensor)}
        return {name.removeprefix("linear."): weight for name, weight in tensors.items()}
    except Exception as exc:  # a broken pickle raises anything
        raise LoadError(f"{path}: cannot be loaded: {first_line(exc)}", "corrupt") from exc


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
