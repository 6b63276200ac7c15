"""The check that outputs have the type and size that the family and the model file declare.

Clients and indexes rely on the declared sizes.
"""

import numpy as np

from sie_triton.contract import Model, Rows
from sie_triton.contract.tensors import NUMPY_DTYPES, Tensor
from sie_triton.errors import LoadError
from sie_triton.models.families.answers import sampled
from sie_triton.models.families.base import Adapter, Family


def check_dims(model: Model, family: Family, adapter: Adapter) -> None:
    """Run a few short items; raise LoadError naming both numbers if an output has another size."""
    batch = sampled(model, family, adapter, [2, 2])
    rows = adapter.forward(batch)
    for tensor in model.tensors(batch.outputs):
        check_declared(tensor, rows)
    for name in sorted(batch.outputs):
        shown = rows[model.outputs[name].tensors[0].name].shape[1:] if name in model.outputs else ()
        found = adapter.dims.get(name, shown[-1] if shown else None)
        said = model.spec.dims.get(name)
        if None not in (found, said) and found != said:
            message = f"tasks.encode.{name}.dim: the model file says {said}, but the weights give {found}"
            raise LoadError(message, "unsupported")


def check_declared(tensor: Tensor, rows: Rows) -> None:
    """Raise LoadError if a tensor has another type; otherwise Triton would blame the client."""
    wanted = (np.dtype(NUMPY_DTYPES[tensor.dtype]), len(tensor.dims))
    array = rows.get(tensor.name)
    if array is None or (array.dtype, array.ndim) != wanted:
        found = "nothing" if array is None else f"{array.dtype} of {array.ndim} dimensions"
        message = f"output {tensor.name}: the family returns {found}, but declares {wanted[0]} of {wanted[1]}"
        raise LoadError(message, "unsupported")
