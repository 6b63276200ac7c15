"""Items of a request, for models that read one kind of input and for those that read several."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sie_triton.contract.tensors import ITEMS, TEXT, Tensor
from sie_triton.errors import InputError

# Name of the items of a model that reads several kinds.
ITEM = "items"


def item_tensors(kinds: Sequence[str]) -> tuple[Tensor, ...]:
    """Return the input tensors of items of these kinds; all of them are optional if there are several."""
    tensors = tuple(ITEMS[kind] for kind in kinds)
    return tensors if len(tensors) == 1 else tuple(replace(tensor, optional=True) for tensor in tensors)


def items_of(sent: Mapping[str, Sequence[Any]], kinds: Sequence[str]) -> tuple[str, Sequence[Any]]:
    """Return the name of the items, and the items.

    If the model reads one kind of input, an item is its element. If it reads several, an item maps kinds to elements,
    without the empty ones; an item without elements is an empty text. Raise InputError if there are no items, if the
    inputs differ in length, or if an item is empty and cannot be an empty text: no texts are sent, or files are sent
    and all of them are empty.
    """
    if len(kinds) == 1:
        name = ITEMS[kinds[0]].name
        return name, sent[name]
    given = {kind: sent[ITEMS[kind].name] for kind in kinds if sent[ITEMS[kind].name]}
    if not given:
        raise InputError.at(" and ".join(kinds), "are empty; send at least one item")
    counts = {kind: len(elements) for kind, elements in given.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{kind} has {count} elements" for kind, count in counts.items())
        raise InputError(f"{told}; send the same number of each, with an empty element where an item has none")
    where = ITEM if len(given) > 1 else next(iter(given))
    files = [element for kind, elements in given.items() if kind != TEXT.name for element in elements]
    takes_blank = TEXT.name in given and (not files or any(map(len, files)))
    items = [dict(zip(given, elements, strict=True)) for elements in zip(*given.values(), strict=True)]
    return ITEM, [without_empty(item, f"{where}[{i}]", takes_blank) for i, item in enumerate(items)]


def without_empty(item: Mapping[str, Any], where: str, takes_blank: bool) -> Mapping[str, Any]:
    """Return an item without its empty elements. If all are empty: an empty text, or InputError at `where`."""
    found = {kind: element for kind, element in item.items() if len(element)}
    if not found and not takes_blank:
        raise InputError.at(where, f"is empty; send {' or '.join(item)}")
    return found or {TEXT.name: ""}
