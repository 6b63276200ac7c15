"""A session of ONNX Runtime: the library is imported here, when the first one is opened, and nowhere else."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sie_triton.errors import LoadError

INSTALL = "it is served with ONNX Runtime, which is not installed: pip install 'sie-triton[onnx]'"

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"

NO_CUDA = (
    "the ONNX Runtime that is installed computes on a CPU only: pip uninstall onnxruntime && "
    "pip install 'sie-triton[gpu]', or use --device cpu"
)
NOT_USED = (
    "ONNX Runtime cannot use the GPU, and its log says which library it lacks: install the CUDA and cuDNN that its "
    "version names, or use --device cpu"
)

SPIN_US = 500

# What transformers, optimum and our own graphs call what they take and give.
INPUT_IDS, TOKEN_TYPE_IDS, POSITION_IDS = "input_ids", "token_type_ids", "position_ids"
ATTENTION_MASK, STATES = "attention_mask", "last_hidden_state"


def is_installed() -> bool:
    return find_spec("onnxruntime") is not None


def open_session(path: Path, device: str, num_threads: int) -> Any:
    """An InferenceSession of the file, whose passes share `num_threads`; LoadError says why there is none."""
    if not is_installed():
        raise LoadError(f"{path.name}: {INSTALL}", "dependency")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
    options.log_severity_level = 3
    # Small blocks of work: a thread that others keep from its core holds up no one.
    options.add_session_config_entry("session.dynamic_block_base", "4")
    # Between a pass's operators threads wait actively, and after it for so long: that halves a short pass, and costs
    # others little.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    if device != "cpu" and CUDA not in onnxruntime.get_available_providers():
        raise LoadError(f"{path.name}: {NO_CUDA}", "dependency")
    try:
        session = onnxruntime.InferenceSession(path, options, providers=providers(device))
    except Exception as exc:  # the library's errors have no common class
        raise LoadError(f"{path}: ONNX Runtime cannot open it: {str(exc).splitlines()[0]}", "corrupt") from exc
    if device != "cpu":
        # It takes the CPU if it cannot use the GPU, now or after a failed pass, and only prints so.
        if CUDA not in session.get_providers():
            raise LoadError(f"{path.name}: {NOT_USED}", "dependency")
        session.disable_fallback()
    return session


def providers(device: str) -> list[Any]:
    """Of that device, the first that can take a node gets it."""
    if device == "cpu":
        return [CPU]
    index = int(device.partition(":")[2] or 0)
    # Memory grows by what is needed, and not to the next power of two.
    return [(CUDA, {"device_id": index, "arena_extend_strategy": "kSameAsRequested"}), CPU]
