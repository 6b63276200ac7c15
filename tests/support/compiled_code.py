"""Results of our compiled code. As a program it pretends a processor, writes them to a file, and tells their origin."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sie_triton
from sie_triton.contract.spec import MuveraConfig
from sie_triton.contract.transforms import Muvera
from sie_triton.engines.torch import cpu_kernels
from sie_triton.system.host import speed
from sie_triton.system.native import loading
from sie_triton.system.native.builds import KERNELS, MUVERA


def results() -> dict[str, Any]:
    """Return results of attention, layer norm, the 8-bit product and MUVERA; of two threads, as workers have."""
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    torch.set_num_threads(2)
    try:
        query, key, value = (numbers(1, 2, 200, 32) for _ in range(3))
        found = {"attention": cpu_kernels.attention(query, key, value, (13, 187), (13, 150), 0.2, (70, -1))}
        norm = torch.nn.LayerNorm(48)
        found["layer_norm"] = cpu_kernels.add_layer_norm(numbers(37, 48), numbers(37, 48), norm).detach()
        x, weight, bias = numbers(37, 32), numbers(64, 32), numbers(64)
        if cpu_kernels.has_int8():
            found["int8"] = cpu_kernels.int8_linear(x, cpu_kernels.int8_panels(weight), bias, has_gelu=True)
    finally:
        torch.set_num_threads(1)
    vectors, lengths = numbers(90, 24).numpy(), np.array([70, 0, 20], np.int32)
    muvera = Muvera(MuveraConfig(num_repetitions=4, final_projection_dim=512), 24)
    return {name: each.numpy() for name, each in found.items()} | {
        "muvera": muvera.encode(vectors, lengths, is_query=False)
    }


def main() -> None:
    speed.CPU_INFO = Path(sys.argv[1])
    np.savez(sys.argv[2], **results())
    kernels, muvera = (loading._load(build) for build in (KERNELS, MUVERA))
    assert kernels is not None
    assert muvera is not None
    package = str(Path(sie_triton.__file__).parent)
    print(json.dumps({"package": package, "kernels": kernels.origin, "muvera": muvera.origin}))


if __name__ == "__main__":
    main()
