"""Are the vectors as long as the model file says? Clients and indexes are made for what it says."""

import numpy as np

from sie_triton.contract import DENSE, MULTIVECTOR
from sie_triton.errors import LoadError
from sie_triton.families.base import Adapter, PackedBatch
from sie_triton.spec import ModelSpec


def check_dims(spec: ModelSpec, adapter: Adapter) -> None:
    """Run two items of two tokens; LoadError names both numbers where an output has another size."""
    if "encode" not in spec.tasks:
        return
    tokens = np.full(4, adapter.vocab_size // 2, np.int32)
    lengths, no_prompts = np.array([2, 2], np.int32), np.zeros(2, np.int32)
    rows = adapter.forward(PackedBatch(tokens, lengths, no_prompts, outputs=frozenset(spec.forward_types)))
    found = {
        "dense": rows[DENSE.name].shape[1] if DENSE.name in rows else 0,
        "sparse": adapter.vocab_size if spec.sparse_dim else 0,
        "multivector": rows[MULTIVECTOR.name].shape[1] if MULTIVECTOR.name in rows else 0,
    }
    said = {"dense": spec.dense_dim, "sparse": spec.sparse_dim, "multivector": spec.multivector_dim}
    for name, dim in found.items():
        if dim != said[name]:
            message = f"tasks.encode.{name}.dim: the model file says {said[name]}, the weights give {dim}"
            raise LoadError(message, "unsupported")
