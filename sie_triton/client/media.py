"""Convert files, images and audio from callers to the bytes that are sent. The server checks their content."""

import io
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.errors import InputError

FILE = "give its bytes or its path"
IMAGE = "give its bytes, its path, a PIL image, or a uint8 array [height, width, 3]"
AUDIO = 'give its bytes, its path, or {"data": array, "sample_rate": 16000}'


def image_bytes(image: Any, name: str) -> bytes:
    """Return an image file; PIL images and arrays are encoded as PNG, which is lossless."""
    if isinstance(image, np.ndarray):
        image = _picture(image, name)
    if not (hasattr(image, "save") and hasattr(image, "mode")):
        return file_bytes(image, name, IMAGE)
    written = io.BytesIO()
    try:
        image.save(written, "PNG", compress_level=1)
    except (OSError, ValueError) as exc:
        raise InputError.at(name, f"cannot be encoded as PNG ({exc})") from exc
    return written.getvalue()


def audio_bytes(audio: Any, name: str) -> bytes:
    """Return an audio file; arrays of samples are encoded as WAV without loss."""
    if isinstance(audio, np.ndarray):
        raise InputError.at(name, f"an array alone has no sampling rate; {AUDIO}")
    if isinstance(audio, Mapping) and isinstance(audio.get("data"), np.ndarray):
        return _wav(audio["data"], audio.get("sample_rate"), name)
    return file_bytes(audio, name, AUDIO)


def file_bytes(file: Any, name: str, allowed: str = FILE) -> bytes:
    """Return the content of a file, given as bytes, a path, or SIE's {"data": bytes}. URLs are not downloaded."""
    if isinstance(file, Mapping) and "data" in file:
        file, name = file["data"], f"{name}.data"
    if isinstance(file, (bytes, bytearray, memoryview)):
        return bytes(file)
    if not isinstance(file, (str, os.PathLike)):
        raise InputError.at(name, f"must be a file, not {type(file).__name__}; {allowed}")
    path = Path(file)
    if "://" in str(file):
        raise InputError.at(name, f"is a URL, which the client does not download; {allowed}")
    try:
        return path.read_bytes()
    except (OSError, ValueError) as exc:
        raise InputError.at(name, f"cannot be read ({exc})") from exc


def _wav(samples: Any, rate: Any, name: str) -> bytes:
    wanted = np.float32 if samples.dtype.kind == "f" else np.int16
    if samples.dtype.newbyteorder("=") not in (np.float64, wanted) or samples.ndim not in (1, 2) or not samples.size:
        raise InputError.at(
            f"{name}.data",
            f"an array {samples.dtype} {list(samples.shape)} cannot be sent as audio; "
            "give float32 or int16 of shape [samples] or [samples, channels]",
        )
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or not 0 < rate < 1 << 31:
        raise InputError.at(
            f"{name}.sample_rate", f"must be a positive integer, in samples per second; got {rate!r:.40}"
        )
    data = samples.astype(np.dtype(wanted).newbyteorder("<")).tobytes()
    channels, width = 1 if samples.ndim == 1 else samples.shape[1], np.dtype(wanted).itemsize
    if channels * width >= 1 << 16 or len(data) >= (1 << 32) - 64:
        raise InputError.at(
            f"{name}.data", f"{list(samples.shape)} does not fit into a WAV file; send a compressed file"
        )
    codec = {"i": 1, "f": 3}[samples.dtype.kind]
    form = (codec, channels, rate, rate * channels * width % (1 << 32), channels * width)
    chunk = struct.pack("<4sIHHIIHH", b"fmt ", 16, *form, 8 * width)
    head = struct.pack("<4sI4s", b"RIFF", 4 + len(chunk) + 8 + len(data), b"WAVE")
    return b"".join((head, chunk, struct.pack("<4sI", b"data", len(data)), data))


def _picture(array: Any, name: str) -> Any:
    try:
        from PIL import Image
    except ImportError as exc:
        raise InputError.at(name, "an array needs Pillow (pip install pillow); or send an image file") from exc
    try:
        return Image.fromarray(array)
    except (TypeError, ValueError) as exc:
        raise InputError.at(
            name, f"an array {array.dtype} {list(array.shape)} cannot be sent as an image; {IMAGE}"
        ) from exc
