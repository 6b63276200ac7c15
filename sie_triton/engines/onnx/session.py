"""Sessions of ONNX Runtime. The library is imported only here, when the first session is opened."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sie_triton.errors import LoadError

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"

# Names of inputs and outputs in graphs of transformers, optimum and our own export.
INPUT_IDS, TOKEN_TYPE_IDS, POSITION_IDS = "input_ids", "token_type_ids", "position_ids"
ATTENTION_MASK, STATES = "attention_mask", "last_hidden_state"


def is_installed() -> bool:
    return find_spec("onnxruntime") is not None


def open_session(path: Path, device: str, num_threads: int) -> Any:
    """Open the file as an InferenceSession whose passes share `num_threads`. Raise LoadError if that fails."""
    if not is_installed():
        message = f"{path.name}: it is served with ONNX Runtime, which is not installed"
        raise LoadError(f"{message}: pip install 'sie-triton[onnx]'", "dependency")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
    options.log_severity_level = 3
    # Small blocks of work, so that a preempted thread does not delay the others.
    options.add_session_config_entry("session.dynamic_block_base", "4")
    # Threads spin between a pass's operators, and for half a millisecond after it: a short pass takes half the time,
    # at little cost to other threads.
    options.add_session_config_entry("session.intra_op.spin_duration_us", "500")
    if device != "cpu" and CUDA not in onnxruntime.get_available_providers():
        raise LoadError(
            f"{path.name}: the ONNX Runtime that is installed computes on a CPU only: pip uninstall onnxruntime && "
            "pip install 'sie-triton[gpu]', or use --device cpu",
            "dependency",
        )
    try:
        session = onnxruntime.InferenceSession(path, options, providers=providers(device))
    except Exception as exc:  # the library's errors have no common class
        raise LoadError(f"{path}: ONNX Runtime cannot open it: {str(exc).splitlines()[0]}", "corrupt") from exc
    if device != "cpu":
        # Without this, ONNX Runtime silently falls back to the CPU, now or after a failed pass.
        if CUDA not in session.get_providers():
            raise LoadError(
                f"{path.name}: ONNX Runtime cannot use the GPU, and its log says which library it lacks: install the "
                "CUDA and cuDNN that its version names, or use --device cpu",
                "dependency",
            )
        session.disable_fallback()
    return session


def providers(device: str) -> list[Any]:
    """Return the execution providers for `device`; the first that supports a node runs it."""
    if device == "cpu":
        return [CPU]
    index = int(device.partition(":")[2] or 0)
    # Grow the arena by the size requested instead of to the next power of two.
    return [(CUDA, {"device_id": index, "arena_extend_strategy": "kSameAsRequested"}), CPU]
