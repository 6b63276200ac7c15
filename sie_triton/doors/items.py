"""Convert the items of a request to items of the client.

The client would read a string as the path of a file. Files are therefore decoded here: they come from requests, never
from this machine.
"""

import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from sie_triton.contract.parameters import LONGEST_NAME
from sie_triton.contract.tensors import AUDIO, DOCUMENT, ENTITIES, IMAGE, TEXT
from sie_triton.doors.failures import invalid
from sie_triton.doors.fields import TOO_MANY_WORDS, whole
from sie_triton.doors.places import ENCODE, FILE_KEYS, ID, IMAGES, ITEM_KEYS, METADATA, SOUND_KEYS, VIDEO, Places
from sie_triton.errors import InputError

# Kinds of input that are files, with the fields of their objects.
MEDIA = {IMAGE.name: FILE_KEYS, AUDIO.name: SOUND_KEYS, DOCUMENT.name: FILE_KEYS}

FILE = "send base64 or a data: URL, in msgpack bytes; addresses are not fetched"

CONTENT = 'a list of at most one {"type": "text"}, one {"type": "image_url"} and one {"type": "input_audio"}'

# Types of parts with a file → the input that reads it, and the key of its base64 or data: URL.
FILE_PARTS = {
    "image_url": (IMAGE.name, "url"),
    "audio_url": (AUDIO.name, "url"),
    "input_audio": (AUDIO.name, "data"),
}


def items_in(found: Mapping[str, Any], max_items: int, places: Places = ENCODE) -> list[dict[str, Any]]:
    """Return the items of a request, at least one; Failure 400 names the invalid field."""
    items = found.get("items")
    if not isinstance(items, list):
        raise invalid("items", f"must be a list of items, not {type(items).__name__}")
    if not items:
        raise invalid("items", "is empty; send at least one")
    if len(items) > max_items:
        raise invalid("items", TOO_MANY_WORDS.format(number=len(items), most=max_items))
    return [item_in(item, f"items[{i}]", places) for i, item in enumerate(items)]


def item_in(item: Any, name: str, places: Places = ENCODE) -> dict[str, Any]:
    """Return one item without `metadata`; `name` is its field in errors. Failure 400 for a field that is not read."""
    if isinstance(item, str):
        return {TEXT.name: item}
    if not isinstance(item, dict):
        raise invalid(name, f'must be a string or an object such as {{"text": …}}, not {type(item).__name__}')
    read: dict[str, Any] = {}
    if (text := item.get(TEXT.name)) is not None:
        if not isinstance(text, str):
            raise invalid(f"{name}.{TEXT.name}", f"must be a string, not {type(text).__name__}")
        read[TEXT.name] = text
    if (identity := item.get(ID)) is not None:
        read[ID] = _identity(identity, name)
    if len(item) > len(read):
        places.check(item, name, ITEM_KEYS)
        read.update(_files(item, name, places))
    if not read.keys() - {ID}:
        raise invalid(name, f"must have {', '.join((TEXT.name, IMAGES, AUDIO.name))} or {DOCUMENT.name}")
    return read


def content_in(given: Any, name: str, *beside: str) -> dict[str, Any]:
    """Return the item that the parts of an object's `content` make; InputError for fields but those `beside` it."""
    content = given.get("content") if isinstance(given, Mapping) else None
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise InputError.at(f"{name}.content", f"must be {CONTENT}")
    _check_keys(given, name, "content", *beside)
    item: dict[str, Any] = {}
    for part in content:
        given_type, value = part.get("type"), part.get("text")
        kind = TEXT.name if given_type == TEXT.name else None
        if isinstance(given_type, str) and given_type in FILE_PARTS:
            held, (kind, key) = part.get(given_type), FILE_PARTS[given_type]
            value = held.get(key) if isinstance(held, Mapping) else held
        if kind is None or kind in item or not isinstance(value, str):
            raise InputError.at(f"{name}.content", f"must be {CONTENT}")
        _check_keys(part, f"{name}.content", "type", part["type"])
        item[kind] = value
    return item_in(item, name)


def _check_keys(given: Mapping[Any, Any], name: str, *allowed: str) -> None:
    for key in given.keys() - set(allowed):
        raise InputError.at(f"{name}.{str(key)[:LONGEST_NAME]}", f"is not read here; allowed: {', '.join(allowed)}")


def entities_in(item: Any, name: str) -> list[Any]:
    """Return the known entities in an item's metadata, which models of relations read; Failure 400 unless a list."""
    metadata = item.get(METADATA) if isinstance(item, dict) else None
    entities = metadata.get(ENTITIES.name) if isinstance(metadata, dict) else None
    if not isinstance(entities, list):
        problem = "is missing" if entities is None else f"is of type {type(entities).__name__}"
        raise invalid(f"{name}.{METADATA}.{ENTITIES.name}", f"{problem}; send a list of objects with start and end")
    return entities


def _files(item: Mapping[str, Any], name: str, places: Places) -> dict[str, Any]:
    if item.get(VIDEO) is not None:
        raise invalid(f"{name}.{VIDEO}", "is not supported by any model; send its frames as images")
    given = {kind: item[kind] for kind in MEDIA if item.get(kind) is not None}
    images = item.get(IMAGES)
    if images is not None:
        if not isinstance(images, list) or len(images) != 1 or IMAGE.name in given:
            raise invalid(f"{name}.{IMAGES}", "must be a list of one image; send each image as an item of its own")
        given[IMAGE.name] = images[0]
    for kind, value in given.items():
        if isinstance(value, dict):
            places.check(value, f"{name}.{kind}", MEDIA[kind])
    return {kind: file_in(value, f"{name}.{kind}") for kind, value in given.items()}


def file_in(value: Any, name: str) -> Any:
    """Return the bytes of a file; for audio given as an array, the array and its sampling rate."""
    data = value.get("data") if isinstance(value, dict) else value
    if isinstance(data, np.ndarray) and name.endswith(AUDIO.name) and isinstance(value, dict):
        return {"data": data, "sample_rate": _rate(value.get("sample_rate"), name)}
    if not isinstance(data, (bytes, str)):
        raise invalid(name, f"must be a file, not {type(data).__name__}; {FILE}")
    content = _decoded(data, name) if isinstance(data, str) else data
    if not content:
        raise invalid(name, "is empty; send the bytes of a file")
    return content


def _rate(value: Any, name: str) -> int:
    if (rate := whole(value)) is not None:
        return rate
    raise invalid(f"{name}.sample_rate", f"must be an integer, in samples per second; got {type(value).__name__}")


def _decoded(text: str, name: str) -> bytes:
    """Return the bytes of base64 text, or of a data: URL."""
    start = text.find(",") + 1 if text.startswith("data:") else 0
    try:
        return binascii.a2b_base64(text[start:] if start else text, strict_mode=True)
    except ValueError as exc:
        raise invalid(name, f"is not valid base64 ({exc}); {FILE}") from exc


def _identity(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value
    # JSON's reader rounds integers beyond 64 bits to floats: one just below the least would become the least.
    least = -(2**63) if isinstance(value, int) else 1 - 2**63
    if (number := whole(value)) is not None and least <= number < 2**64:
        return number
    raise invalid(f"{name}.{ID}", f"must be a string, not {type(value).__name__}")
