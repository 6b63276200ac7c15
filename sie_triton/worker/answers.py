"""What a pass gave, before it leaves the worker."""

import numpy as np

from sie_triton.contract import Batch, Rows
from sie_triton.errors import ModelError


def check_finite(rows: Rows, batch: Batch) -> None:
    """ModelError if the model computed NaN or infinity, which quantized vectors would hide.

    Features of `batch` that are handed on were not computed: a label's threshold is NaN where it has none.
    """
    for name, values in rows.items():
        if values.dtype.kind == "f" and name not in batch.features and not np.isfinite(values).all():
            raise ModelError(f"{name}: the model computed numbers that are not finite")
