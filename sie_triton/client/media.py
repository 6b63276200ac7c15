"""Files as callers have them → the bytes that are sent. What is in them is the server's to judge."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.errors import InputError

FILE = "give its bytes or its path"
IMAGE = "give its bytes, its path, a PIL image, or a uint8 array [height, width, 3]"


def image_bytes(image: Any, name: str) -> bytes:
    """An image file; pictures that are none yet become PNG, which loses nothing."""
    if isinstance(image, np.ndarray):
        image = _picture(image, name)
    if not (hasattr(image, "save") and hasattr(image, "mode")):
        return file_bytes(image, name, IMAGE)
    written = io.BytesIO()
    try:
        image.save(written, "PNG", compress_level=1)
    except (OSError, ValueError) as exc:
        raise InputError(f"{name}: cannot be written as PNG ({exc})") from exc
    return written.getvalue()


def file_bytes(file: Any, name: str, allowed: str = FILE) -> bytes:
    """Bytes, a path, or SIE's {"data": bytes}; nothing is fetched from a URL."""
    if isinstance(file, Mapping) and "data" in file:
        file, name = file["data"], f"{name}.data"
    if isinstance(file, (bytes, bytearray, memoryview)):
        return bytes(file)
    if not isinstance(file, (str, os.PathLike)):
        raise InputError(f"{name}: is {type(file).__name__}; {allowed}")
    path = Path(file)
    if "://" in str(file):
        raise InputError(f"{name}: is a URL, which nobody fetches for you; {allowed}")
    try:
        return path.read_bytes()
    except (OSError, ValueError) as exc:
        raise InputError(f"{name}: cannot be read ({exc})") from exc


def _picture(array: Any, name: str) -> Any:
    try:
        from PIL import Image
    except ImportError as exc:
        raise InputError(f"{name}: an array needs Pillow to be sent (pip install pillow); or give a file") from exc
    try:
        return Image.fromarray(array)
    except (TypeError, ValueError) as exc:
        raise InputError(f"{name}: an array {array.dtype} {list(array.shape)} is no picture; {IMAGE}") from exc
