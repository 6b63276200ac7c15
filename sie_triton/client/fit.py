"""Compare the inputs of a call with the inputs that the metadata of the model's ensemble lists. Pure functions."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sie_triton.contract import ITEMS, VERBS, Verb
from sie_triton.contract.tensors import QUERY_IMAGE, Tensor
from sie_triton.errors import InputError

OF_ITEMS = {tensor.name for tensor in (*ITEMS.values(), QUERY_IMAGE)}


class Misfit(InputError):
    """The model does not serve the verb, or does not take one of the inputs. Tracebacks show it as an InputError."""

    __module__, __qualname__ = InputError.__module__, InputError.__qualname__


def input_names(metadata: Any) -> list[str]:
    """Return the names of an ensemble's inputs; `metadata` is Triton's, as JSON or protobuf."""
    inputs = metadata["inputs"] if isinstance(metadata, dict) else metadata.inputs
    return [each["name"] if isinstance(each, dict) else each.name for each in inputs]


def check_verb(model: str, verb: Verb, names: Sequence[str]) -> None:
    """Raise Misfit unless an ensemble with inputs of these names serves `verb`."""
    served = verb_of(names)
    if served is not verb:
        remedy = f"; call {served.name}" if served else ""
        raise Misfit.at("model", f"{model} does not {verb.name}; it takes {', '.join(names)}{remedy}")


def check_kinds(model: str, names: Collection[str], tensors: Mapping[str, Tensor], fields: Mapping[str, str]) -> None:
    """Raise Misfit unless each kind of input in `fields` has a tensor among `names`.

    `fields` maps a kind to the field of the call that holds it, and `tensors` to the tensor in which it is sent.
    """
    for kind, field in fields.items():
        if tensors[kind].name not in names:
            taken = " and ".join(each for each, tensor in tensors.items() if tensor.name in names)
            raise Misfit.at(field, f"{model} takes no {kind} here; it takes {taken or 'none'}")


def verb_of(names: Sequence[str]) -> Verb | None:
    """Return the verb that an ensemble with inputs of these names serves; None if it serves none.

    >>> [verb_of(names).name for names in (["text"], ["query", "text"], ["image", "labels", "entities"])]
    ['encode', 'score', 'extract']
    """
    beside_items = {*names} - OF_ITEMS
    return next((verb for verb in VERBS.values() if {each.name for each in verb.inputs(())} == beside_items), None)
