"""Ways to compute faster on this machine that take one step of the user. Imports no engine."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")

# Flags of processors that multiply bfloat16.
MULTIPLIES_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})

ONNX_RUNTIME = (
    "ONNX Runtime is not installed: with pip install 'sie-triton[onnx]' (0.1 GB) single short texts take about 0.6 of "
    "the time"
)
BFLOAT16 = (
    "this processor multiplies bfloat16: with SIE_DEFAULT_COMPUTE_PRECISION=bfloat16 many clients get about 1.5 times "
    "as many texts a second; the cosine to float32 stays above 0.999"
)


def speedups(device: str, engine: str, precision: str) -> Sequence[str]:
    """Return one sentence for each way that the settings leave open; `precision` empty: not set. None on a GPU."""
    if device != "cpu":
        return []
    has_graphs = engine == "torch" or find_spec("onnxruntime") is not None
    is_open = not precision and multiplies_bfloat16()
    return [*([] if has_graphs else [ONNX_RUNTIME]), *([BFLOAT16] if is_open else [])]


def multiplies_bfloat16() -> bool:
    """True if the processor multiplies bfloat16; False if the system does not tell."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not MULTIPLIES_BFLOAT16.isdisjoint(flags)
