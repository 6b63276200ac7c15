"""Error messages about a directory that cannot be served: its contents, what it lacks, and the remedy."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from sie_triton.checkpoints.files import Fields, has_file, inside, only_pickled, opened, read_fields, shortened
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.onnx import PATTERNS, graphs
from sie_triton.checkpoints.special_tokens import has_vocabulary
from sie_triton.errors import LoadError

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS, INDEX, PICKLE = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
# The weights as open_clip saves them.
OPEN_CLIP = "open_clip_model.safetensors"

# PEFT saves this file with a LoRA adapter.
ADAPTER = "adapter_config.json"

NO_GRAPHS = "models of this kind are read from safetensors only: save the model with save_pretrained of transformers"

# File name patterns of formats that cannot be served: pattern, format, and what to do instead.
FORMATS = (
    ("*.gguf", "GGUF", "serve the directory with config.json and safetensors that the file was converted from"),
    ("*.onnx", "ONNX", NO_GRAPHS),
    ("onnx/*.onnx", "ONNX", NO_GRAPHS),
    (
        "*pytorch_model*.bin",
        "a pickle",
        "only safetensors are accepted: save the model again with safe_serialization=True",
    ),
    ("tf_model.h5", "TensorFlow", "save the model from PyTorch with safe_serialization=True"),
    ("flax_model.msgpack", "Flax", "save the model from PyTorch with safe_serialization=True"),
)

# Keys of config.json that only models of other inputs than text have.
OTHER_INPUTS = {
    "vision_config": "images",
    "image_size": "images",
    "audio_config": "audio",
    "num_mel_bins": "audio",
    "conv_kernel": "audio",
}

# Weights of a model and of its modules.
SAFETENSORS = ("*.safetensors", "*/*.safetensors")

# A safetensors file begins with the length of its header, an integer of this many bytes.
LENGTH_BYTES = 8
# Bytes of a number in it, of those that are converted to another format.
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
MALFORMED = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
LFS_POINTER = b"version https://git-lfs"


def read_any_config(directory: Path) -> Fields:
    """Read transformers' config.json; raise LoadError saying what the directory holds instead."""
    if has_file(directory / ADAPTER):
        raise LoadError(_lora(directory), "unsupported")
    if has_file(directory / "model_index.json"):
        raise LoadError(
            f"{directory}: is a diffusers pipeline (model_index.json), which generates images; it cannot be served",
            "unsupported",
        )
    if not has_file(directory / CONFIG) and not (directory / CONFIG).is_symlink():
        raise LoadError(f"{directory}: {_describe_without_config(directory)}", "not found")
    return read_fields(directory / CONFIG)


def read_config(directory: Path) -> Fields:
    """Read the config.json of a text model; raise LoadError for a model of other inputs."""
    config = read_any_config(directory)
    key = next(filter(config.has, OTHER_INPUTS), None)
    if key is not None:
        kind = f"{config.text('model_type', 'it')} ({key})"
        raise config.unserved(f"{kind} reads {OTHER_INPUTS[key]}; it cannot be served as a text model")
    return config


def check_complete(transformer: Path, *layers: Path, takes_onnx: bool = False) -> None:
    """Raise LoadError naming the weights or tokenizer files that a local directory lacks or has only in part.

    `layers` are the directories of the modules after the transformer. With `takes_onnx`, the transformer's weights may
    be an ONNX graph.
    """
    if not has_vocabulary(transformer):
        message = f"{TOKENIZER} is missing in {transformer}; save the tokenizer beside the model"
        raise LoadError(message, "not found")
    if not (takes_onnx and not has_file(transformer / WEIGHTS) and onnx_graphs(transformer)):
        for path in _weight_files(transformer):
            check_safetensors(path)
    for layer in layers:
        # sentence-transformers before 2.3 saved pickles.
        if has_file(layer / PICKLE) and not has_file(layer / WEIGHTS):
            raise only_pickled(str(layer), [PICKLE])
        check_safetensors(layer / WEIGHTS)


def check_safetensors(path: Path) -> None:
    """Raise LoadError if the file is shorter or longer than its header says."""
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise LoadError(f"{path}: is a Git LFS pointer, not the weights; run git lfs pull", "corrupt")
            length, header = _header(file, path, size)
        expected = LENGTH_BYTES + length + _end_of_data(header)
    except FileNotFoundError as exc:
        raise LoadError(f"{path.name} is missing in {path.parent}", "not found") from exc
    except MALFORMED as exc:
        message = f"{path}: is not a safetensors file, or is truncated within its header; fetch it again"
        raise LoadError(message, "corrupt") from exc
    if size != expected:
        message = f"{path}: has {size} bytes, but its header says {expected}: it is truncated; fetch it again"
        raise LoadError(message, "corrupt")


def check_headers(directory: Path) -> None:
    """Raise LoadError if a file of weights would block its reader, or take it long: a pipe, a device, a long header."""
    for path in (path for pattern in SAFETENSORS for path in directory.glob(pattern)):
        with suppress(OSError), opened(path) as file:
            _length_of_header(file, path, os.fstat(file.fileno()).st_size)


def converted_bytes(path: Path, width: int) -> int:
    """Memory of the weights in a file of safetensors whose floats take `width` bytes each; of another file its size."""
    size = path.stat().st_size
    try:
        with opened(path) as file:
            _, header = _header(file, path, size)
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        total = sum(_bytes_of(tensor) * width // FLOATS.get(tensor["dtype"], width) for tensor in tensors)
    except (*MALFORMED, LoadError):
        return size
    return total if 0 < total <= size * width else size


def _header(file: BinaryIO, path: Path, size: int) -> tuple[int, Any]:
    """Return length and content of the header of a safetensors file of `size` bytes."""
    file.seek(0)
    length = _length_of_header(file, path, size)
    return length, json.loads(file.read(length) if length < size else b"")


def _length_of_header(file: BinaryIO, path: Path, size: int) -> int:
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if LIMITS.max_header_bytes < length < size:
        raise LoadError(
            f"{path}: its header has {length} bytes; at most {LIMITS.max_header_bytes} are read", "unsupported"
        )
    return length


def onnx_graphs(directory: Path) -> list[str]:
    return graphs([str(path.relative_to(directory)) for pattern in PATTERNS for path in directory.glob(pattern)])


def _end_of_data(header: dict[str, Any]) -> int:
    offsets = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return int(max(offsets, default=0))


def _bytes_of(tensor: dict[str, Any]) -> int:
    start, end = tensor["data_offsets"]
    return int(end) - int(start)


def _weight_files(directory: Path) -> list[Path]:
    if has_file(directory / INDEX):
        index = read_fields(directory / INDEX)
        return [inside(directory, name, index.where) for name in sorted(set(index.text_map("weight_map").values()))]
    if not has_file(directory / WEIGHTS) and has_file(directory / OPEN_CLIP):
        return [directory / OPEN_CLIP]
    if not has_file(directory / WEIGHTS):
        message = f"{directory}: has no {WEIGHTS}; {_other_format(directory) or 'the weights are missing'}"
        raise LoadError(message, "not found")
    return [directory / WEIGHTS]


def _lora(directory: Path) -> str:
    base = read_fields(directory / ADAPTER).values.get("base_model_name_or_path")
    return (
        f"{directory}: is a PEFT adapter ({ADAPTER}) for {shortened(base)}, not a model by itself; "
        "merge it into that model (merge_and_unload) and save the result"
    )


def _describe_without_config(directory: Path) -> str:
    """Describe a directory without config.json, and give the remedy."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory))
    except OSError as exc:
        return f"cannot be read ({exc.strerror})"
    if not names:
        return f"is empty; a model has {CONFIG}, {TOKENIZER} and {WEIGHTS}"
    if found := onnx_graphs(directory):
        missing = "is" if TOKENIZER in names else f"and {TOKENIZER} are"
        return f"{CONFIG} {missing} missing beside {found[0]}; copy the files that were exported with the model there"
    if other := _other_format(directory):
        return f"{CONFIG} is missing, and {other}"
    if TOKENIZER in names and WEIGHTS not in names:
        return f"{CONFIG} is missing: the directory has a tokenizer, but no model"
    if files := [name for name in names if name.endswith((".yaml", ".yml"))]:
        return f"holds model files ({files[0]}), not a model; serve them with --models-dir {directory}, or name one"
    return f"{CONFIG} is missing; found {', '.join(map(shortened, names[:5]))}{' …' if len(names) > 5 else ''}"


def _other_format(directory: Path) -> str:
    """Name a file of another format, and give the remedy; empty if there is none."""
    for pattern, name, advice in FORMATS:
        if found := sorted(directory.glob(pattern)):
            return f"{found[0].relative_to(directory)} is {name}; {advice}"
    return ""
