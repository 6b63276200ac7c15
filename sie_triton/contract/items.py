"""Items of a request: of one kind of input, or of several, of which each has what it has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sie_triton.contract.tensors import ITEMS, TEXT, Tensor
from sie_triton.errors import InputError

# What an item is called that may be of several kinds.
ITEM = "items"


def item_tensors(kinds: Sequence[str]) -> tuple[Tensor, ...]:
    """What a client sends of items to a model that reads these kinds; of several it may leave out some."""
    tensors = tuple(ITEMS[kind] for kind in kinds)
    return tensors if len(tensors) == 1 else tuple(replace(tensor, optional=True) for tensor in tensors)


def items_of(sent: Mapping[str, Sequence[Any]], kinds: Sequence[str]) -> tuple[str, Sequence[Any]]:
    """What items are called, and each: its element, or, where a model reads several kinds, its elements by kind.

    An element without anything in it is not there; an item without any is an empty text. InputError.
    """
    if len(kinds) == 1:
        name = ITEMS[kinds[0]].name
        return name, sent[name]
    given = {kind: sent[ITEMS[kind].name] for kind in kinds if sent[ITEMS[kind].name]}
    if not given:
        raise InputError(f"{' and '.join(kinds)}: are empty; send at least one item")
    counts = {kind: len(elements) for kind, elements in given.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{kind} has {count} elements" for kind, count in counts.items())
        raise InputError(f"{told}; send as many of each, an empty one where an item has none")
    items = [dict(zip(given, elements, strict=True)) for elements in zip(*given.values(), strict=True)]
    return ITEM, [_without_empty(item, f"{ITEM}[{i}]", kinds) for i, item in enumerate(items)]


def _without_empty(item: Mapping[str, Any], where: str, kinds: Sequence[str]) -> Mapping[str, Any]:
    found = {kind: element for kind, element in item.items() if len(element)}
    if not found and TEXT.name not in kinds:
        raise InputError(f"{where}: is empty; send {' or '.join(kinds)}")
    return found or {TEXT.name: ""}
