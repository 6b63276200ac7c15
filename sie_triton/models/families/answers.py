"""A model's answers to random items: compared before and after a change of how it computes them, and with its file."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sie_triton.contract import VERBS, Batch, Model, Ragged, Rows
from sie_triton.contract.arrays import Floats
from sie_triton.contract.tensors import INPUT_IDS, NUMPY_DTYPES, SPARSE_VALUES, Tensor
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Adapter, Family

# Lengths of the items, in the unit of the first feature.
LENGTHS = (3, 5, 8, 12, 20, 33, 48, 64) * 3


@dataclass(frozen=True, slots=True)
class Tolerance:
    min_cosine: float = 0.98  # of vectors, of the tokens of an item on average, and of sparse vectors
    # Of a score between 0 and 1. Of a logit: relative to the largest, or to 2 where all are smaller.
    max_difference: float = 0.1
    largest_logit: float = 15  # beyond it, float32 cannot tell a score from 1
    min_shared: float = 0.5  # share of results that both computations find


TOLERANCE = Tolerance()


def sampled(model: Model, family: Family, adapter: Adapter, lengths: Sequence[int] = LENGTHS) -> Batch:
    """Return items of about these lengths: random ordinary tokens, from which the family returns all it can."""
    longest = model.spec.max_sequence_length
    features = dict((adapter.sample or family.sample)([min(each, longest) for each in lengths]))
    if INPUT_IDS.name in features and INPUT_IDS.name in adapter.limits:
        # Ids past the vocabulary have a meaning of their own.
        vocab_size = getattr(adapter.encoder, "vocab_size", adapter.limits[INPUT_IDS.name] + 1)
        features[INPUT_IDS.name] = varied(features[INPUT_IDS.name], vocab_size)
    for name, (values, counts) in features.items():
        if values.dtype == np.float32:  # NaN: a label without a threshold
            features[name] = Ragged(np.nan_to_num(values), counts)
    known = {parameter.name for parameter in family.parameters}
    permissive = {"threshold": 0.0, "flat_ner": False, "multi_label": True}
    options = {name: value for name, value in permissive.items() if name in known}
    num_items = len(next(iter(features.values())).of_items)
    outputs = frozenset(output.made_of or name for name, output in model.outputs.items())
    return Batch(features, np.zeros(num_items, np.bool_), outputs, [options] * num_items)


def varied(ids: Ragged, vocab_size: int) -> Ragged:
    """Replace the 1s of a sample, which stand for any token, by tokens from the middle of the vocabulary."""
    low, high = vocab_size // 4, max(vocab_size // 4 + 1, 3 * vocab_size // 4)
    drawn = np.random.default_rng(1).integers(low, high, len(ids.values), np.int32)
    return Ragged(np.where(ids.values == 1, drawn, ids.values), ids.lengths)


def difference(model: Model, before: Rows, after: Rows) -> str:
    """Describe how answers differ by more than the tolerance; empty if they do not."""
    tensors = {tensor.name: tensor for verb in VERBS.values() for tensor in verb.computed(model)}
    for tensor in tensors.values():
        if tensor.name in before and before[tensor.name].dtype == np.float32:
            beside = [each for each in tensors.values() if tensor.lengths and each.lengths == tensor.lengths]
            if said := compared(tensor, keyed(tensor, beside, before), keyed(tensor, beside, after)):
                return f"{tensor.name}: {said}"
    return ""


# Rows of a tensor by what identifies them: the item, and integers beside the row or its place.
Keyed = dict[tuple[int, ...], Floats]


def keyed(tensor: Tensor, beside: Sequence[Tensor], rows: Rows) -> Keyed:
    values = rows[tensor.name]
    lengths = rows[tensor.lengths] if tensor.lengths else np.ones(len(values), np.int32)
    items = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    integers = [rows[each.name] for each in beside if rows[each.name].dtype == np.int32]
    columns = np.column_stack([items, *(integers or [places])])
    return dict(zip(map(tuple, columns.tolist()), values, strict=True))


def compared(tensor: Tensor, before: Keyed, after: Keyed) -> str:
    """Describe how the rows of a tensor differ by more than the tolerance; empty if they do not."""
    if tensor.name == SPARSE_VALUES.name:
        return said_of_cosine(sparse_cosines(before, after))
    shared = [key for key in before if key in after]
    if not len(shared) >= TOLERANCE.min_shared * max(len(before), len(after)):
        return f"{len(shared)} of {max(len(before), len(after))} results are the same"
    if not shared:
        return ""
    ours, theirs = (np.stack([rows[key] for key in shared]).astype(np.float64) for rows in (after, before))
    if ours.ndim > 1:
        return said_of_cosine(item_cosines([key[0] for key in shared], ours, theirs))
    if min(ours.min(), theirs.min()) >= 0 and max(ours.max(), theirs.max()) <= 1:
        return said_of_difference(ours, theirs, TOLERANCE.max_difference) or said_of_logits(
            logits(ours), logits(theirs)
        )
    return said_of_logits(ours, theirs)


def logits(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the logits of scores between 0 and 1.

    >>> logits(np.array([0, 0.5, 1])).tolist()
    [-15.0, 0.0, 15.0]
    """
    with np.errstate(divide="ignore"):
        whole: npt.NDArray[np.float64] = np.log(scores) - np.log1p(-scores)
    return whole.clip(-TOLERANCE.largest_logit, TOLERANCE.largest_logit)


def said_of_logits(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> str:
    said = said_of_difference(ours, theirs, TOLERANCE.max_difference * max(2.0, float(np.abs(theirs).max())))
    return f"logits have {said}" if said else ""


def said_of_difference(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64], limit: float) -> str:
    most = float(np.abs(ours - theirs).max())
    return "" if most <= limit else f"a difference of {most:.2g}, above {limit:.2g}"


def said_of_cosine(cosines: npt.NDArray[np.float64]) -> str:
    least = float(cosines.min(initial=1))
    return "" if least >= TOLERANCE.min_cosine else f"a cosine of {least:.3f}, below {TOLERANCE.min_cosine}"


def item_cosines(
    items: Sequence[int], ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the mean cosine of the rows of each item; two rows of zeros are equal."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = np.where((ours == theirs).all(1), 1, (ours * theirs).sum(1) / np.maximum(lengths, np.finfo(float).tiny))
    _, of_item, counts = np.unique(items, return_inverse=True, return_counts=True)
    means: npt.NDArray[np.float64] = np.bincount(of_item, cosines) / counts
    return means


def sparse_cosines(before: Keyed, after: Keyed) -> npt.NDArray[np.float64]:
    """Return the cosine of the sparse vectors of each item; an empty vector equals an empty one only."""
    keys = sorted(before.keys() | after.keys())
    items = np.array([key[0] for key in keys], np.int64)
    ours, theirs = (np.array([rows.get(key, 0) for key in keys], np.float64) for rows in (after, before))
    products, left, right = (np.bincount(items, each) for each in (ours * theirs, ours**2, theirs**2))
    is_there = (left > 0) | (right > 0)
    cosines: npt.NDArray[np.float64] = products[is_there] / np.sqrt(np.maximum(left * right, 1e-30)[is_there])
    return cosines


def check_dims(model: Model, family: Family, adapter: Adapter) -> None:
    """Run a few short items; raise LoadError naming both numbers if an output has another size."""
    batch = sampled(model, family, adapter, [2, 2])
    rows = adapter.forward(batch)
    for tensor in model.tensors(batch.outputs):
        check_declared(tensor, rows)
    for name in sorted(batch.outputs):
        shown = rows[model.outputs[name].tensors[0].name].shape[1:] if name in model.outputs else ()
        found = adapter.dims.get(name, shown[-1] if shown else None)
        said = model.spec.dims.get(name)
        if None not in (found, said) and found != said:
            message = f"tasks.encode.{name}.dim: the model file says {said}, but the weights give {found}"
            raise LoadError(message, "unsupported")


def check_declared(tensor: Tensor, rows: Rows) -> None:
    """Raise LoadError if a tensor has another type; otherwise Triton would blame the client."""
    wanted = (np.dtype(NUMPY_DTYPES[tensor.dtype]), len(tensor.dims))
    array = rows.get(tensor.name)
    if array is None or (array.dtype, array.ndim) != wanted:
        found = "nothing" if array is None else f"{array.dtype} of {array.ndim} dimensions"
        message = f"output {tensor.name}: the family returns {found}, but declares {wanted[0]} of {wanted[1]}"
        raise LoadError(message, "unsupported")
