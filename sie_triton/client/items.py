"""Convert the items of a call to the bytes that are sent, by kind of input."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.client.media import audio_bytes, file_bytes, image_bytes
from sie_triton.client.types import ItemLike
from sie_triton.contract import ITEMS
from sie_triton.contract.tensors import AUDIO, DOCUMENT, IMAGE, TEXT
from sie_triton.errors import InputError

MEDIA: Mapping[str, Callable[[Any, str], bytes]] = {
    IMAGE.name: image_bytes,
    AUDIO.name: audio_bytes,
    DOCUMENT.name: file_bytes,
}

# Keys of an item besides the kinds of input. SIE's own requests give an image in a list under `images`.
IDENTITY, IMAGES = "id", "images"
KEYS = (*ITEMS, IMAGES, IDENTITY)
FILE_KEYS = ("data", "format", "sample_rate")
ITEM = 'send a string, or a mapping with inputs that the model takes: {"text": …, "image": …}; "id" is optional'

Bytes = npt.NDArray[np.object_]


def is_one(items: Any) -> bool:
    return isinstance(items, (str, Mapping))


def listed(items: Any) -> list[ItemLike]:
    """Return the items of a call as a list; `items` is one item or an iterable of items."""
    if is_one(items):
        return [items]
    if isinstance(items, (bytes, bytearray, memoryview)) or not isinstance(items, Iterable):
        raise InputError.at("items", f"must be an item or a list of items, not {type(items).__name__}; {ITEM}")
    return list(items)


def encoded(items: Sequence[ItemLike], name: str = "items") -> dict[str, Bytes]:
    """Return an object array [n] of bytes for each kind of input that occurs in the items; only texts if none occurs.

    An element is empty if its item does not have that kind.
    """
    found = [encoded_item(item, f"{name}[{i}]") for i, item in enumerate(items)]
    kinds = [kind for kind in ITEMS if any(kind in each for each in found)] or [TEXT.name]
    return {kind: objects([each.get(kind, b"") for each in found]) for kind in kinds}


def encoded_item(item: ItemLike, name: str) -> dict[str, bytes]:
    """Return the bytes of one item by kind of input; `name` is its field in errors."""
    if isinstance(item, str):
        return {TEXT.name: utf_8(item, name)}
    if not isinstance(item, Mapping):
        raise InputError.at(name, f"must be a string or a mapping, not {type(item).__name__}; {ITEM}")
    for key in item:
        if key not in KEYS:
            raise InputError.at(f"{name}.{key}", f"is not allowed; {ITEM}")
    given = {key: value for key, value in item.items() if value is not None or key == TEXT.name}
    if IMAGES in given:
        given[IMAGE.name] = _only(given, f"{name}.{IMAGES}")
    found = {kind: _content(kind, given[kind], f"{name}.{kind}") for kind in MEDIA if kind in given}
    if TEXT.name in given:
        if not isinstance(given[TEXT.name], str):
            raise InputError.at(f"{name}.text", f"must be a string, not {type(given[TEXT.name]).__name__}")
        found[TEXT.name] = utf_8(given[TEXT.name], f"{name}.text")
    if not found:
        raise InputError.at(name, f"has none of {', '.join(ITEMS)}; {ITEM}")
    return found


def _content(kind: str, value: Any, name: str) -> bytes:
    """Return the bytes of a file. Without bytes, the server would take it for an item without such a file."""
    for key in value if isinstance(value, Mapping) else ():
        if key not in FILE_KEYS:
            raise InputError.at(f"{name}.{key}", f"is not allowed; allowed are {', '.join(FILE_KEYS)}")
    content = MEDIA[kind](value, name)
    if not content:
        raise InputError.at(name, "is empty; give a file with content, or leave the key out")
    return content


def _only(item: Mapping[str, Any], name: str) -> Any:
    images = item[IMAGES]
    if not isinstance(images, Sequence) or isinstance(images, (str, bytes)) or len(images) != 1 or IMAGE.name in item:
        raise InputError.at(
            name, "must be a list of one image, and image must not be set too; send each image as an item of its own"
        )
    return images[0]


def objects(values: Sequence[bytes]) -> Bytes:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def utf_8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InputError.at(name, f"cannot be sent as UTF-8 ({exc.reason} at {exc.start})") from exc
