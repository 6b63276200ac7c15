"""Items of a request → those of the client.

A string would be the path of a file to the client: files are read from requests only, never from this machine.
"""

import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from sie_triton.contract.tensors import AUDIO, DOCUMENT, IMAGE, TEXT
from sie_triton.doors.failures import invalid
from sie_triton.doors.fields import check_count, whole

# What an item has in SIE's requests, or in ours, → the client's name of it.
MEDIA = {IMAGE.name: IMAGE.name, AUDIO.name: AUDIO.name, DOCUMENT.name: DOCUMENT.name}
IMAGES, VIDEO, ID = "images", "video", "id"

FILE = 'give {"data": …}: bytes in msgpack, base64 in JSON'


def items_in(found: Mapping[str, Any], max_items: int) -> list[dict[str, Any]]:
    """Those of a request's `items`, at least one."""
    items = found.get("items")
    if not isinstance(items, list):
        raise invalid(f"items: must be a list of items, it is {type(items).__name__}")
    if not items:
        raise invalid("items: is empty; send at least one")
    check_count(len(items), "items", max_items)
    return [item_in(item, f"items[{i}]") for i, item in enumerate(items)]


def item_in(item: Any, name: str) -> dict[str, Any]:
    """One; what nobody reads of it, `metadata` and the like, is left out."""
    if isinstance(item, str):
        return {TEXT.name: item}
    if not isinstance(item, dict):
        raise invalid(f'{name}: must be a string or an object as {{"text": …}}, it is {type(item).__name__}')
    read: dict[str, Any] = {}
    if (text := item.get(TEXT.name)) is not None:
        read[TEXT.name] = text
    if (identity := item.get(ID)) is not None:
        read[ID] = _identity(identity, name)
    if len(item) > len(read):
        read.update(_files(item, name))
    if not read.keys() - {ID}:
        raise invalid(f"{name}: has no {TEXT.name}, and no {', no '.join((IMAGES, AUDIO.name, DOCUMENT.name))}")
    return read


def _files(item: Mapping[str, Any], name: str) -> dict[str, Any]:
    if item.get(VIDEO) is not None:
        raise invalid(f"{name}.{VIDEO}: no model reads it; send images of it")
    given = {kind: item[kind] for kind in MEDIA if item.get(kind) is not None}
    images = item.get(IMAGES)
    if images is not None:
        if not isinstance(images, list) or len(images) != 1 or IMAGE.name in given:
            raise invalid(f"{name}.{IMAGES}: must be a list of one image; make an item of each")
        given[IMAGE.name] = images[0]
    return {kind: _file(value, f"{name}.{kind}") for kind, value in given.items()}


def _file(value: Any, name: str) -> Any:
    """Its bytes; of a sound that is an array, the array and its rate."""
    data = value.get("data") if isinstance(value, dict) else value
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return _decoded(data, name)
    if isinstance(data, np.ndarray) and name.endswith(AUDIO.name) and isinstance(value, dict):
        return {"data": data, "sample_rate": _rate(value.get("sample_rate"), name)}
    raise invalid(f"{name}: is {type(data).__name__}; {FILE}")


def _rate(value: Any, name: str) -> int:
    if (rate := whole(value)) is not None:
        return rate
    raise invalid(f"{name}.sample_rate: must be an integer, in samples a second; it is {type(value).__name__}")


def _decoded(text: str, name: str) -> bytes:
    """Of base64, also of a data: URL."""
    start = text.find(",") + 1 if text.startswith("data:") else 0
    try:
        return binascii.a2b_base64(text[start:] if start else text, strict_mode=True)
    except ValueError as exc:
        raise invalid(f"{name}: is no base64 ({exc}); {FILE}") from exc


def _identity(value: Any, name: str) -> Any:
    found = value if isinstance(value, str) else whole(value)
    if found is not None and (isinstance(found, str) or -(2**63) <= found < 2**64):
        return found
    raise invalid(f"{name}.{ID}: must be a string, it is {type(value).__name__}")
