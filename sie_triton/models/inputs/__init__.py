"""Inputs as clients send them → elements → the features that a model reads.

A kind of input is one module, and one line here.
"""

from collections.abc import Mapping, Sequence

from sie_triton.models.inputs.audio import AudioInput
from sie_triton.models.inputs.base import Frame, InputKind, NoFrame, Processor
from sie_triton.models.inputs.documents import DocumentInput
from sie_triton.models.inputs.images import ImageInput
from sie_triton.models.inputs.several import SeveralInputs
from sie_triton.models.inputs.text import TextInput

KINDS: Mapping[str, InputKind] = {
    kind.name: kind for kind in (TextInput(), ImageInput(), AudioInput(), DocumentInput())
}

# Tensor → kind of its elements.
KIND_OF: Mapping[str, InputKind] = {tensor.name: kind for kind in KINDS.values() for tensor in kind.tensors}


def kind_of(names: Sequence[str]) -> InputKind:
    """Return the input kind of the items of a model that reads these kinds."""
    kinds = [KINDS[name] for name in names]
    return kinds[0] if len(kinds) == 1 else SeveralInputs(kinds)


__all__ = ["KINDS", "KIND_OF", "Frame", "InputKind", "NoFrame", "Processor", "kind_of"]
