"""Can this model run packed? Found out by comparing it with the library's own eager attention, item by item.

"Packed equals alone" with one and the same function would be blind to a forgotten causal mask or window;
another implementation, at a length beyond any window, is not.
"""

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch

from sie_triton.checkpoints.files import first_line
from sie_triton.engines.base import Overflow
from sie_triton.engines.torch.encoder import PACKED, PADDED, Encoder
from sie_triton.engines.torch.faults import is_of_machine, is_out_of_memory
from sie_triton.errors import LoadError
from sie_triton.measurements import Measurements

# Largest difference of a token's state from the eager one, relative to the largest state of its item.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}

# Two of similar length are padded together.
SHORT_LENGTHS = (1, 2, 7, 33, 35)
WINDOW_SETTINGS = ("sliding_window", "local_attention", "attention_window", "attention_chunk_size")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error` is the largest relative difference of `path`; `reason` says why it was chosen.

    `lasts` is False where the reason is the machine's, so that it may be another after a repair.
    """

    path: str
    reason: str
    error: float
    lasts: bool = True


def choose_path(encoder: Encoder, max_length: int, measurements: Measurements, name: str = "probe") -> Verdict:
    """Prepare `encoder`, and let it take the packed path if that gives the library's result, else the padded one.

    What is found is kept under `name`, if it lasts. LoadError if neither does; Overflow if float16 is too narrow.
    """
    known = measurements.get(name)
    if known is not None:
        encoder.prepare()
        verdict = Verdict(**known)
    else:
        verdict = probe(encoder, max_length)
        if verdict.lasts:
            measurements.put(**{name: {"path": verdict.path, "reason": verdict.reason, "error": verdict.error}})
        else:
            log.warning("the packed path cannot be taken on this machine as it is: %s", verdict.reason)
    if verdict.path == PADDED:
        encoder.paths = (PADDED,)
    encoder.use(verdict.path)
    return verdict


def probe(encoder: Encoder, max_length: int) -> Verdict:
    """Compare both paths with what the library's eager attention made of random tokens before preparation."""
    lengths = np.array([*(n for n in SHORT_LENGTHS if n < max_length), longest(encoder, max_length)], np.int32)
    rng = np.random.default_rng(0)
    # From the middle of the vocabulary: ids at its ends are special, and padding is left out of attention.
    low, high = encoder.vocab_size // 4, 3 * encoder.vocab_size // 4
    input_ids = rng.integers(low, high, lengths.sum(), dtype=np.int32)
    expected = [encoder.eager(item) for item in np.split(input_ids, np.cumsum(lengths)[:-1])]
    encoder.prepare()

    def error_of(path: str) -> float:
        encoder.use(path)
        states = torch.split(encoder.hidden_states(input_ids, lengths), lengths.tolist())
        return largest_error([relative_error(ours, theirs) for ours, theirs in zip(states, expected, strict=True)])

    tolerance, lasts = TOLERANCE[encoder.dtype], True
    try:
        error = error_of(PACKED)
    except Exception as exc:  # whatever a model does with one long row, it then cannot take it
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


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference relative to the largest value; [tokens, d] each. NaN or infinite unless all are finite."""
    ours, theirs = ours.float(), theirs.float()
    return float((ours - theirs).abs().max() / theirs.abs().max())


def largest_error(errors: list[float]) -> float:
    """NaN if one is, where max() would overlook it.

    >>> largest_error([0.1, float("nan"), 0.2])
    nan
    """
    return float(np.max(errors))


def check_range(error: float, dtype: torch.dtype) -> None:
    """Raise Overflow if `error` comes of numbers that float16 does not hold."""
    if dtype is torch.float16 and not math.isfinite(error):
        raise Overflow("float16 cannot be served: this model's numbers overflow in it", "unsupported")


def difference(error: float) -> str:
    """Second half of a sentence."""
    if not math.isfinite(error):
        return "computes numbers that are not finite, or transformers does"
    return f"differs from the library's eager attention by {error:.0e}"


def longest(encoder: Encoder, max_length: int) -> int:
    """Past twice any window of the model, so that a forgotten one shows, and not past what it will be given."""
    config = encoder.config.get_text_config()
    windows = [value for name in WINDOW_SETTINGS if isinstance(value := getattr(config, name, None), int)]
    return min(max_length, 2 * max(windows, default=0) + 65)
