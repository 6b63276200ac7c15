"""Checks of the results of a pass before they leave the worker."""

import numpy as np

from sie_triton.contract import Batch, Rows
from sie_triton.errors import ModelError


def check_finite(rows: Rows, batch: Batch) -> None:
    """Raise ModelError if the model computed NaN or infinity, which quantized vectors would hide.

    Features of `batch` that are passed on were not computed and are not checked: a label without a threshold has NaN.
    """
    for name, values in rows.items():
        if values.dtype.kind == "f" and name not in batch.features and not np.isfinite(values).all():
            raise ModelError(
                f"{name}: the model computed numbers that are not finite; if its compute_precision is float16, "
                "bfloat16 or float32 may help"
            )
