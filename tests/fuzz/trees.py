"""Changed documents: nested values in which some are replaced, removed, repeated, renamed or nested."""

import copy
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.damage import ANYWHERE, one


class Deep(NamedTuple):
    """Stands for lists, or objects, in each other."""

    depth: int
    is_object: bool = False


class Again(NamedTuple):
    """Key that is written as `name`, once more."""

    name: Any


class Raw(NamedTuple):
    """Bytes that stand for a value of msgpack as they are; in JSON, null."""

    data: bytes


NUMBERS = (0, 1, -1, 2, 127, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31) - 1, -(2**63))
BEYOND = (10**30, -(10**30), 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", " ", "x", "\0", "\ud800", "ü", "蔷" * 99, "x" * 3000, "../../etc/passwd", "/", "a/b", "{text}", "%s", "1")
TEXTS += ("null", "NaN", "true", "-1", "1e999", "\n", "a,b", ",", ":", "a:b", "http://h", "\u202e", "data:,", "A" * 90)
CONTAINERS: tuple[Any, ...] = ([], {}, [None], [[]], {"": None}, ["x"] * 70, Deep(70), Deep(2000), Deep(70, True))
ODD: tuple[Any, ...] = (None, True, False, *NUMBERS, *BEYOND, *TEXTS, b"", b"\xff", *CONTAINERS)
PLAIN = tuple(each for each in ODD if not isinstance(each, (bytes, Deep)))

Change = tuple[int, int, int]
CHANGE = st.tuples(ANYWHERE, st.integers(0, 11), ANYWHERE)
CHANGES = st.one_of(st.lists(CHANGE, max_size=1), st.lists(CHANGE, max_size=4))


def changed(documents: Sequence[Any], odd: Sequence[Any] = ODD, *, is_plain: bool = False) -> SearchStrategy[Any]:
    """Return a strategy of `documents` with a few changes, by the values `odd`; plain ones are what JSON can say."""

    def made(document: Any, changes: list[Change]) -> Any:
        root = [copy.deepcopy(document)]
        for place, kind, amount in changes:
            _change(root, place, kind, amount, odd, is_plain=is_plain)
        return root[0]

    return st.builds(made, one(list(documents)), CHANGES)


def _change(root: list[Any], place: int, kind: int, amount: int, odd: Sequence[Any], *, is_plain: bool) -> None:
    places = list(_places(root))
    container, key = places[place % len(places)]
    value = container[key]
    if kind <= 4:
        container[key] = copy.deepcopy(odd[amount % len(odd)])
    elif kind == 5:
        _remove(container, key, root)
    elif kind == 6:
        container[key] = [value] * (amount % 4) if amount % 3 else {"x": value}
    elif kind == 7:
        container[key] = _of_another_type(value, is_plain=is_plain)
    elif kind == 8 and isinstance(container, dict):
        name = odd[amount % len(odd)]
        container[name if isinstance(name, str) else "x"] = container.pop(key)
    elif kind == 9 and isinstance(container, dict) and not is_plain:
        container[Again(key)] = copy.deepcopy(odd[amount % len(odd)])
    elif kind == 10 and isinstance(value, list):
        container[key] = value * (amount % 60)
    elif isinstance(value, dict):
        other, at = places[amount % len(places)]
        name = at if isinstance(at, str) else "x"
        value[name] = copy.deepcopy(other[at])


def _places(container: Any) -> Any:
    """Yield each value's container and its key there, outside first."""
    keys = list(container) if isinstance(container, dict) else range(len(container))
    for key in keys:
        yield container, key
        if type(container[key]) in (dict, list):
            yield from _places(container[key])


def _remove(container: Any, key: Any, root: list[Any]) -> None:
    if container is not root:
        del container[key]


def _of_another_type(value: Any, *, is_plain: bool) -> Any:
    if isinstance(value, str):
        return [value] if is_plain or len(value) % 2 else value.encode(errors="replace")
    if isinstance(value, (dict, list)):
        return str(value) if isinstance(value, dict) else dict.fromkeys(map(str, range(len(value))))
    return str(value)


def to_json(value: Any) -> bytes:
    """Return JSON, also what is none: surrogates, NaN, equal keys. Bytes become text."""
    return "".join(_json(value)).encode("utf-8", "surrogatepass")


def _json(value: Any) -> Any:
    if isinstance(value, Again):
        value = value.name
    if isinstance(value, Deep):
        first, last = ('{"a":', "}") if value.is_object else ("[", "]")
        yield first * value.depth + "1" + last * value.depth
    elif isinstance(value, Raw):
        yield "null"
    elif isinstance(value, dict):
        for i, (key, each) in enumerate(value.items()):
            yield "," if i else "{"
            yield from _json(key if isinstance(key, (str, Again)) else str(key))
            yield ":"
            yield from _json(each)
        yield "}" if value else "{}"
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield "," if i else "["
            yield from _json(each)
        yield "]" if value else "[]"
    else:
        yield json.dumps(value.decode("latin-1") if isinstance(value, bytes) else value)


def to_msgpack(value: Any) -> bytes:
    """Return msgpack, also what JSON cannot say: equal keys, other keys than texts, numbers beyond 64 bits as texts."""
    return b"".join(_msgpack(value, msgpack.Packer(unicode_errors="surrogatepass")))


def _msgpack(value: Any, packer: Any) -> Any:
    if isinstance(value, Again):
        value = value.name
    if isinstance(value, Deep):
        yield (b"\x81\xa1a" if value.is_object else b"\x91") * value.depth + b"\xc0"
    elif isinstance(value, Raw):
        yield value.data
    elif isinstance(value, dict):
        yield packer.pack_map_header(len(value))
        for key, each in value.items():
            yield from _msgpack(key, packer)
            yield from _msgpack(each, packer)
    elif isinstance(value, (list, tuple)):
        yield packer.pack_array_header(len(value))
        for each in value:
            yield from _msgpack(each, packer)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        yield packer.pack(str(value))
    else:
        yield packer.pack(value)
