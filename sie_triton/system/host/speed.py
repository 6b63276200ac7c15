"""Ways to compute faster on this machine that take one step of the user. Imports no engine."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")

ONNX_RUNTIME = (
    "ONNX Runtime is not installed: with pip install 'sie-triton[onnx]' (0.1 GB) single short texts take about 0.6 of "
    "the time"
)
BFLOAT16 = (
    "this processor multiplies bfloat16: with SIE_DEFAULT_COMPUTE_PRECISION=bfloat16 many clients get about 1.4 times "
    "as many texts a second; the cosine to float32 stays above 0.999"
)
INT8 = (
    "this processor multiplies 8-bit integers: with SIE_DEFAULT_COMPUTE_PRECISION=int8 many clients get about 2 times "
    "as many texts a second (MiniLM, whose vectors keep a cosine to float32 of 0.997); a model that it would change is "
    "refused"
)


def speedups(device: str, engine: str, precision: str) -> Sequence[str]:
    """Return one sentence for each way that the settings leave open; `precision` empty: not set. None on a GPU."""
    if device != "cpu":
        return []
    has_graphs = engine == "torch" or find_spec("onnxruntime") is not None
    flags = frozenset() if precision else processor_flags()
    found = [] if has_graphs else [ONNX_RUNTIME]
    found += [BFLOAT16] if flags & {"avx512_bf16", "amx_bf16"} else []
    found += [INT8] if "avx512_vnni" in flags else []
    return found


def processor_flags() -> frozenset[str]:
    """Return the features of the processor; empty if the system does not tell."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
