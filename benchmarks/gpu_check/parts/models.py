"""Every kernel that can run here, the padded path and CUDA graphs, compared with the library's eager attention.

The reference is computed in float32 from weights rounded to the number format, so that only the computation differs.
The limit of a kernel's error is twice that of eager attention in the same format. A missing mask causes a far larger
error, as controls that are wrong on purpose show in each run.
"""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_check.fidelity import CONTROLS, TIMES_EAGER, TOLERANCE, add_controls, differences, judged
from benchmarks.gpu_check.scope import Finding, Plan, Row
from benchmarks.gpu_check.shapes import SIZES as MODELS
from benchmarks.gpu_check.shapes import lengths_of, sharpened
from sie_triton.engines.torch.attention.kernels import KERNELS, reason_unusable
from sie_triton.engines.torch.cuda_graphs import SIZES, CapturedPasses
from sie_triton.engines.torch.encoder import PACKED, PADDED, TorchEncoder

DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float16", "bfloat16", "float32")}


def compare(name: str, plan: Plan) -> Iterator[Finding]:
    """Compare every kernel and path in every number format."""
    add_controls(plan)
    lengths = np.array(lengths_of(name, plan), np.int32)
    input_ids = np.random.default_rng(1).integers(1000, 20000, lengths.sum(), dtype=np.int32)
    items = np.split(input_ids, np.cumsum(lengths)[:-1])
    model = sharpened(name, plan)
    for dtype in DTYPES[torch.device(plan.device).type]:
        ours = TorchEncoder(copy.deepcopy(model).to(getattr(torch, dtype)), "eager")
        truth = TorchEncoder(copy.deepcopy(model).to(getattr(torch, dtype)).float(), "eager")
        expected = torch.cat([truth.eager(item) for item in items])
        eager, _ = differences(torch.cat([ours.eager(item) for item in items]), expected)
        # Where attention selects a single token, rounding may select another one in some computations.
        times = TIMES_EAGER if MODELS[name].sharpness == 1 else 2 * TIMES_EAGER
        limit = TOLERANCE + times * eager
        for kernel in ways(plan.device, getattr(torch, dtype), name):
            row = {"model": name, "dtype": dtype, "kernel": kernel, "limit": limit}
            yield finding(row, partial(states, ours, kernel, input_ids, lengths), expected)
        if not MODELS[name].packed_only:
            few = lengths[lengths.cumsum() <= SIZES[-1]]
            row = {"model": name, "dtype": dtype, "kernel": "captured", "limit": limit}
            yield finding(row, partial(captured_states, ours, input_ids, few), expected[: few.sum()])


def ways(device: str, dtype: torch.dtype, name: str) -> list[str]:
    """Return the kernels that can run here, the padded path, and the controls that affect this model."""
    if MODELS[name].packed_only:
        return [PACKED, PADDED]
    controls = ["leaking"] if name == "BERT-base" else list(CONTROLS)
    kernels = [each for each in KERNELS if each not in CONTROLS]
    return [
        *(each for each in kernels if reason_unusable(each, torch.device(device), dtype) is None),
        PADDED,
        *controls,
    ]


def states(encoder: TorchEncoder, kernel: str, input_ids: Any, lengths: Any) -> torch.Tensor:
    """Compute token states with `kernel`, or on the path of that name."""
    if kernel in KERNELS:
        encoder.kernel = kernel
    encoder.use(PADDED if kernel == PADDED else PACKED)
    return encoder.hidden_states(input_ids, lengths)


def captured_states(encoder: TorchEncoder, input_ids: Any, lengths: Any) -> torch.Tensor:
    """Compute token states of the first items with a CUDA graph; record graphs of all sizes afterwards."""
    passes, ids = CapturedPasses(encoder), input_ids[: lengths.sum()]
    encoder.use(PACKED)
    states = passes.hidden_states(ids, lengths, lengths, np.zeros_like(ids), encoder.positions(ids, lengths))
    passes.serve(SIZES[-1], SIZES[-1])
    return states


def finding(row: Row, compute: Any, expected: torch.Tensor) -> Finding:
    """Compare the computed states with `expected`."""
    row |= judged(row["kernel"], lambda: (*differences(compute(), expected), row["limit"]))
    where = f"{row['model']}, {row['dtype']}, {row['kernel']}"
    return Finding("model_fidelity", f"{where}: {row.pop('verdict')}", row)
