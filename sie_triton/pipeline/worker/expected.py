"""Estimate of a worker's memory before it starts, which the stage requests from the controller. Imports no torch."""

from sie_triton.checkpoints.contents import converted_bytes
from sie_triton.contract.spec import TORCH, ModelSpec
from sie_triton.pipeline.worker.messages import Load
from sie_triton.system.host.footprint import ACTIVATION_BYTES, CUDA_CONTEXT_BYTES, FORKED_BYTES, INTERPRETER_BYTES
from sie_triton.system.processes.fork_server import answers

# Name of a measurement of a loaded worker, in bytes: its unshared memory, or its GPU memory.
RESIDENT_BYTES = "private_bytes"

# Name of a measurement of a worker on a CPU, in bytes: what the passes of all its lanes take at most.
OF_PASSES = "bytes_of_passes"

# Bytes per number by precision; the default on a GPU is float16.
WIDTHS = {"": 2, "float16": 2, "bfloat16": 2, "float32": 4}


def expected_bytes(load: Load) -> int:
    """Estimate the memory of the worker on its device in bytes.

    Use the last measurement, else the sizes of the weight files. While a worker loads, a CPU holds each weight at most
    twice, a GPU once, in the precision of the passes. On a GPU, memory for passes is added.
    """
    known = load.measurements()
    measured = int(known.get(RESIDENT_BYTES) or 0)
    if load.device != "cpu":
        return ACTIVATION_BYTES + (measured or CUDA_CONTEXT_BYTES + _on_a_gpu(load))
    if measured:
        return measured + int(known.get(OF_PASSES) or 0)
    forked = load.fork_server is not None and answers(load.fork_server)
    return (FORKED_BYTES if forked else INTERPRETER_BYTES) + 2 * sum(path.stat().st_size for path in load.files())


def _on_a_gpu(load: Load) -> int:
    """Return the bytes of weights on a GPU: PyTorch converts them to its precision, other engines keep their format."""
    spec = ModelSpec.from_json(load.spec)
    if spec.engine != TORCH:
        return sum(path.stat().st_size for path in load.files())
    width = WIDTHS.get(spec.runtime.precision, 2)
    return sum(converted_bytes(path, width) for path in load.files())
