"""Probe whether a model can run packed, by comparison with the library's own eager attention, item by item.

Comparing packed items with single ones in the same implementation would not reveal a missing causal mask or window.
Another implementation, at a length beyond any window, does.
"""

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch

from sie_triton.checkpoints.files import first_line
from sie_triton.contract.arrays import Ints, item_lengths
from sie_triton.engines.base import Overflow
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.encoder import PACKED, PADDED, TorchEncoder
from sie_triton.engines.torch.facts import num_positions, windows
from sie_triton.engines.torch.faults import is_of_machine, is_out_of_memory, refusing_the_uncomputable
from sie_triton.engines.torch.rows import NO_PADDING
from sie_triton.errors import LoadError

# Maximum difference from eager token states, relative to the largest state of the item.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}

# Tokens that are attended to in an item whose others are not.
FEW_KEYS = 4

# Multiplications by weights in a short pass.
MOST_PRODUCTS = 5e10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The chosen path."""

    path: str
    reason: str  # why it was chosen
    error: float  # its largest relative difference
    lasts: bool = True  # False: the reason is a fault of the machine, so that a repair may change the verdict


def choose_path(
    encoder: TorchEncoder, max_length: int, measurements: Measurements, name: str = "probe", hides: int = 0
) -> Verdict:
    """Prepare `encoder`, and choose the packed path if it gives the library's result, else the padded one.

    Items of up to `hides` tokens may end in some that are not attended to. A lasting verdict is stored in the
    measurements as `name`. Raise LoadError if neither path gives the library's result; raise Overflow if the values
    overflow float16.
    """
    if hides:
        encoder.tokens_per_padding = NO_PADDING  # some models let such tokens attend to everything in their row
    known = measurements.get(name)
    if known is not None:
        encoder.prepare()
        verdict = Verdict(**known)
    else:
        verdict = probe(encoder, max_length, hides)
        if verdict.lasts:
            measurements.put(**{name: {"path": verdict.path, "reason": verdict.reason, "error": verdict.error}})
        else:
            log.warning("the packed path cannot be used on this machine at present: %s", verdict.reason)
    if verdict.path == PADDED:
        encoder.paths = (PADDED,)
    encoder.use(verdict.path)
    return verdict


def probe(encoder: TorchEncoder, max_length: int, hides: int = 0) -> Verdict:
    """Compare both paths with the library's eager attention, computed before preparation; `hides` as above."""
    items = probed(encoder, max_length)
    if hides:
        items.append(encoder.draws.ordinary(min(hides, max_length)))
    lengths, input_ids = item_lengths(items), np.concatenate(items)
    keys = lengths.copy()
    if hides:
        keys[-1] = min(keys[-1], FEW_KEYS)
    with refusing_the_uncomputable():
        expected = [encoder.eager(item, seen) for item, seen in zip(items, keys.tolist(), strict=True)]
    encoder.prepare()

    def error_of(path: str) -> float:
        encoder.use(path)
        states = torch.split(encoder.hidden_states(input_ids, lengths, keys), lengths.tolist())
        return largest_error([relative_error(ours, theirs) for ours, theirs in zip(states, expected, strict=True)])

    tolerance, lasts = TOLERANCE[encoder.dtype], True
    try:
        error = error_of(PACKED)
    except Exception as exc:  # a model may fail on one long row in any way
        if is_out_of_memory(exc):
            raise
        reason, lasts = first_line(exc), not is_of_machine(exc)
    else:
        if error <= tolerance:
            return Verdict(PACKED, "equals the library's eager attention", error)
        check_range(error, encoder.dtype)
        reason = f"packed, it {difference(error)}"
    error = error_of(PADDED)
    if not error <= tolerance:
        check_range(error, encoder.dtype)
        message = f"this is not what transformers computes: {reason}; padded, it {difference(error)}"
        raise LoadError(message, "unsupported")
    return Verdict(PADDED, reason, error, lasts)


def probed(encoder: TorchEncoder, max_length: int) -> list[Ints]:
    """Return items to compare: tokens alone, special tokens within, padding at both ends, and the longest text.

    Two of them are similar enough to be padded together.
    """
    draws = encoder.draws
    short = [draws.ordinary(1), draws.mixed(1, ends=1), draws.ordinary(2), draws.mixed(7, starts=2)]
    items = [*short, draws.mixed(33), draws.mixed(35, ends=3)]
    return [*(each for each in items if len(each) < max_length), draws.ordinary(longest(encoder, max_length))]


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference relative to the largest value; [tokens, d] each. Not finite if a value is not.

    States of padding may all be 0.
    """
    ours, theirs = ours.float(), theirs.float()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(torch.finfo(theirs.dtype).tiny))


def largest_error(errors: list[float]) -> float:
    """Return the largest error, or NaN if any is NaN, which max() may miss.

    >>> largest_error([0.1, float("nan"), 0.2])
    nan
    """
    return float(np.max(errors))


def check_range(error: float, dtype: torch.dtype) -> None:
    """Raise Overflow if `error` is the result of float16 overflow."""
    if dtype is torch.float16 and not math.isfinite(error):
        raise Overflow("float16 cannot be served: this model's numbers overflow in it", "unsupported")


def difference(error: float) -> str:
    """Describe `error` as the second half of a sentence."""
    if not math.isfinite(error):
        return "computes numbers that are not finite, or transformers does"
    return f"differs from the library's eager attention by {error:.0e}"


def longest(encoder: TorchEncoder, max_length: int) -> int:
    """Return the maximum length if a pass of it is short, else a length that shows a missing window.

    A short pass has up to 1024 tokens. The other length is beyond twice any window. Neither is beyond the model's table
    of positions.
    """
    affordable = min(1024, int(MOST_PRODUCTS / encoder.num_weights))
    positions = num_positions(encoder.config, encoder.padding_position, max_length)
    return min(max_length, positions, max(affordable, 2 * max(windows(encoder.config), default=0) + 65))
