"""Family of texts as frames of two numbers, times a matrix; only loading the weights imports the computing library."""

from typing import ClassVar

from sie_triton.contract import ENCODE_OUTPUTS, Output
from sie_triton.contract.tensors import Tensor
from sie_triton.models.families import Family

FRAMES = Tensor("frames", "FP32", (-1, 2), "[characters, 2] code, upper case", "frame_lengths")
NUMPY_VERSION = Tensor("numpy_version", "INT32", (-1, -1), "[n, 2] of the process that computes")


class Arrays(Family):
    outputs = (ENCODE_OUTPUTS["dense"], ENCODE_OUTPUTS["multivector"], Output(NUMPY_VERSION.name, (NUMPY_VERSION,)))
    features = (FRAMES,)
    processor_module = ".processor"
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    files = ("*.npy",)
