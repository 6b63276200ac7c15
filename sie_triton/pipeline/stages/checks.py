"""Checks of the output of another package's processor or adapter: shapes, lengths and ranges."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Features, Model
from sie_triton.contract.arrays import Array, Ints
from sie_triton.contract.tensors import Tensor
from sie_triton.errors import InputError


def check_features(features: Features, declared: Sequence[Tensor], max_length: int, limits: Mapping[str, int]) -> None:
    """Raise InputError for the first invalid feature. `limits`: the maximum of a feature, if the model has one."""
    main = features[declared[0].name].of_items
    for tensor in declared:
        values, lengths = features[tensor.name]
        if lengths is None:
            check_rows(tensor.name, values, len(main))
        else:
            if tensor is declared[0]:
                check_lengths(tensor, lengths, len(values), 1, max_length, ", the model's max_sequence_length")
            else:  # secondary features may be empty
                check_lengths(tensor, lengths, len(values), 0, limits.get(tensor.lengths))
            if len(lengths) != len(main):
                raise InputError.at(
                    tensor.lengths, f"has the lengths of {len(lengths)} items; there are {len(main)} items"
                )
        check_width(tensor, values)
        check_range(tensor, values, limits.get(tensor.name, tensor.maximum))


def check_lengths(tensor: Tensor, lengths: Ints, num_rows: int, least: int, most: int | None, why: str = "") -> None:
    name = tensor.lengths
    if not len(lengths):
        raise InputError.at(name, "is empty; send one length per item")
    shortest, longest = extremes(lengths)
    if shortest < least or (most is not None and longest > most):
        allowed = f"{least} or more" if most is None else f"from {least} to {most}{why}"
        raise InputError.at(name, f"must be {allowed}")
    total = int(lengths.sum(dtype=np.int64))
    if total != num_rows:
        raise InputError.at(name, f"sum to {total}, but {tensor.name} holds {num_rows}; they must agree")


def check_rows(name: str, values: Array, num_items: int) -> None:
    if len(values) != num_items:
        raise InputError.at(name, f"has {len(values)} rows; there are {num_items} items")


def check_width(tensor: Tensor, values: Array) -> None:
    wanted = tuple(max(0, dim) for dim in tensor.dims[1:])
    if any(dim and dim != found for dim, found in zip(wanted, values.shape[1:], strict=True)):
        raise InputError.at(tensor.name, f"rows have shape {list(values.shape[1:])}; this model's have {list(wanted)}")


def check_range(tensor: Tensor, values: Array, maximum: int | None) -> None:
    if tensor.minimum is None or not len(values):
        return
    smallest, largest = extremes(values)
    if smallest < tensor.minimum or (maximum is not None and largest > maximum):
        upper = "" if maximum is None else f" to {maximum}"
        raise InputError.at(tensor.name, f"must be from {tensor.minimum}{upper}")


def extremes(values: Array) -> tuple[Any, Any]:
    """Return minimum and maximum of at least one number."""
    return values.min(), values.max()


def widths_of(model: Model) -> Mapping[str, int]:
    """Map each output tensor to the number of entries in its rows."""
    return {output.tensors[0].name: model.spec.dims[name] for name, output in model.outputs.items()}


def check_computed(
    tensors: Mapping[str, Array], sent: Sequence[Tensor], num_items: int, widths: Mapping[str, int]
) -> None:
    """Raise InputError unless each tensor has one row per item, or as many rows as its lengths say."""
    for tensor in sent:
        array = tensors[tensor.name]
        if tensor.lengths:
            lengths: npt.NDArray[np.int32] = tensors[tensor.lengths]
            if lengths.min(initial=0) < 0 or int(lengths.sum(dtype=np.int64)) != len(array):
                raise InputError.at(
                    tensor.lengths, f"must be 0 or more and sum to the rows of {tensor.name}, {len(array)}"
                )
        else:
            check_rows(tensor.name, array, num_items)
        if array.ndim == 2 and array.shape[1] != widths.get(tensor.name, array.shape[1]):
            raise InputError.at(
                tensor.name, f"rows have {array.shape[1]} entries; this model's have {widths[tensor.name]}"
            )
