"""What clients send of an item → what a model reads of it: elements, and their features.

A kind of input is one module, and one line here.
"""

from collections.abc import Mapping

from sie_triton.inputs.base import Frame, InputKind, NoFrame, Processor
from sie_triton.inputs.text import TextInput

KINDS: Mapping[str, InputKind] = {kind.name: kind for kind in (TextInput(),)}

# Which of them reads the elements of a tensor.
KIND_OF: Mapping[str, InputKind] = {tensor.name: kind for kind in KINDS.values() for tensor in kind.tensors}

__all__ = ["KINDS", "KIND_OF", "Frame", "InputKind", "NoFrame", "Processor"]
