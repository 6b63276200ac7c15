"""Steps that compute nothing: each returns WIDTH zeros a text. Only Triton's stubs import this module."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import triton_python_backend_utils as pb_utils

WIDTH = 64


class Step:
    read: ClassVar[str]
    written: ClassVar[str]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        read = (pb_utils.get_input_tensor_by_name(request, self.read).as_numpy() for request in requests)
        written = (np.zeros((1, array.shape[1], WIDTH), np.float32) for array in read)
        return [pb_utils.InferenceResponse([pb_utils.Tensor(self.written, array)]) for array in written]


class Preprocess(Step):
    read, written = "text", "features"


class Inference(Step):
    read, written = "features", "rows"


class Postprocess(Step):
    read, written = "rows", "dense"
