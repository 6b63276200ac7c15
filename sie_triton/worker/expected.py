"""Memory of a worker, estimated before it is there: what the controller is asked for. Imports no torch."""

from sie_triton.checkpoints.contents import converted_bytes
from sie_triton.footprint import ACTIVATION_BYTES, CUDA_CONTEXT_BYTES, FORKED_BYTES, INTERPRETER_BYTES
from sie_triton.processes.nursery import answers
from sie_triton.spec import TORCH, ModelSpec
from sie_triton.worker.messages import Load

# Measurement of a loaded worker, in bytes: its unshared memory, or its memory of a GPU.
RESIDENT_BYTES = "private_bytes"

# Bytes of a number; without a precision a GPU computes in float16.
WIDTHS = {"": 2, "float16": 2, "bfloat16": 2, "float32": 4}


def expected_bytes(load: Load) -> int:
    """Estimate the memory of the worker on its device in bytes.

    The last measurement, else an estimate from the files of the weights: on a CPU loading holds each weight in memory
    at most twice, on a GPU once, in the format that passes are computed in. On a GPU passes take memory beside them.
    """
    measured = int(load.measurements().get(RESIDENT_BYTES) or 0)
    if load.device != "cpu":
        return ACTIVATION_BYTES + (measured or CUDA_CONTEXT_BYTES + _on_a_gpu(load))
    if measured:
        return measured
    forked = load.nursery is not None and answers(load.nursery)
    return (FORKED_BYTES if forked else INTERPRETER_BYTES) + 2 * sum(path.stat().st_size for path in load.files())


def _on_a_gpu(load: Load) -> int:
    """Weights that PyTorch loads, in the format that it computes in; those of other engines as they are."""
    spec = ModelSpec.from_json(load.spec)
    if spec.engine != TORCH:
        return sum(path.stat().st_size for path in load.files())
    width = WIDTHS.get(spec.runtime.precision, 2)
    return sum(converted_bytes(path, width) for path in load.files())
