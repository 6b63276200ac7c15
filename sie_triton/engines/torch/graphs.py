"""A graph beside the packed path: does it give the same, and up to which size of sub-batch is it faster?

What is found is kept in the model's measurements.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sie_triton.checkpoints.files import first_line
from sie_triton.engines.onnx.graph import Graph
from sie_triton.engines.torch.encoder import PACKED, Encoder
from sie_triton.engines.torch.probe import TOLERANCE, WINDOW_SETTINGS, relative_error
from sie_triton.errors import LoadError
from sie_triton.measurements import Measurements

log = logging.getLogger(__name__)

# How long a call takes.
Seconds = Callable[[Callable[[], object]], float]

# Tokens of the sub-batches that both run; more than that is no short query any more.
SIZES = (4, 8, 12, 16, 24, 32, 48, 64)
ROUNDS = 6

# As slow as this, the graph is so for all that is larger.
HOPELESS = 1.5

# A graph must be faster by more than chance.
FASTER = 0.95

# Lengths of the items of one pass each, for the comparison.
PROBED = ((1,), (2,), (3, 1, 2), (7, 9), (33,), (5, 1, 17, 12))


def graph_name(part: str) -> str:
    """Under which measurements have it."""
    return f"graph_{part}" if part else "graph"


def may_have_graph(encoder: Encoder, measurements: Measurements, part: str) -> bool:
    """False where it is known to be no better, and where this engine makes none."""
    if not encoder.is_exportable or encoder.device.type != "cpu" or encoder.dtype is not torch.float32:
        return False
    known = measurements.get(graph_name(part))
    return encoder.path == PACKED and (known is None or known["max_tokens"] > 0)


def refuse(measurements: Measurements, part: str, reason: str) -> None:
    measurements.put(**{graph_name(part): {"max_tokens": 0, "reason": reason}})


def take_graph(
    encoder: Encoder, path: Path, num_threads: int, measurements: Measurements, part: str, seconds: Seconds
) -> int:
    """Let `encoder` run small sub-batches by the graph at `path`, where that is faster; the largest that it takes."""
    try:
        graph = Graph(path, num_threads, is_causal=encoder.is_causal, max_length=longest_seen(encoder))
        known = measurements.get(graph_name(part)) or measured(encoder, graph, num_threads, seconds)
    except LoadError as exc:
        known = {"max_tokens": 0, "reason": first_line(exc)}
    measurements.put(**{graph_name(part): known})
    log.info("graph of %s: %s", part or "the encoder", known)
    if known["max_tokens"]:
        graph.max_tokens, graph.max_tokens_beside_others = known["max_tokens"], known["beside_others"]
        encoder.graph = graph
    return int(known["max_tokens"])


def measured(encoder: Encoder, graph: Graph, num_threads: int, seconds: Seconds) -> dict[str, Any]:
    """LoadError where the graph does not give what the packed path does."""
    error = probe_graph(encoder, graph)
    torch.set_num_threads(num_threads)
    ratios: dict[int, float] = {}
    for size in SIZES:
        ratios[size] = round(ratio_at(size, encoder, graph, seconds), 3)
        if ratios[size] > HOPELESS:
            break
    return {
        "max_tokens": largest(ratios),
        # There its threads are taken from others, who would be as fast with each.
        "beside_others": largest({size: num_threads * ratio for size, ratio in ratios.items()}),
        "error": error,
        "ratios": {str(size): ratio for size, ratio in ratios.items()},
    }


def largest(ratios: Mapping[int, float]) -> int:
    """Up to which size it is best to use what takes `ratios` of the usual time; 0: nowhere.

    One measurement among the others that was disturbed changes little.

    >>> largest({4: 0.4, 8: 1.1, 16: 0.6, 32: 0.99})
    16
    """
    best, gain, most = 0, 0.0, 0.0
    for size, ratio in ratios.items():
        gain += FASTER - ratio
        if gain > most:
            best, most = size, gain
    return best


def probe_graph(encoder: Encoder, graph: Graph) -> float:
    """The largest relative difference of a state; LoadError where it is too large, or the graph cannot be run."""
    rng, worst = np.random.default_rng(0), 0.0
    for given in PROBED:
        lengths = np.minimum(given, graph.max_length).astype(np.int32)
        ids = rng.integers(encoder.vocab_size // 4, 3 * encoder.vocab_size // 4, lengths.sum(), dtype=np.int32)
        keys = np.maximum(1, lengths - (len(given) > 1)).astype(np.int32)
        types = rng.integers(0, max(1, encoder.num_token_types), lengths.sum(), dtype=np.int32)
        expected = encoder.packed(ids, lengths, keys, types)
        try:
            states = graph.hidden_states(ids, lengths, keys, types, encoder.first_position)
        except Exception as exc:  # the library's errors have no common class
            raise LoadError(f"the graph cannot be run: {first_line(exc)}") from exc
        if states.shape != expected.shape or not bool(torch.isfinite(states).all()):
            raise LoadError(f"the graph gives {list(states.shape)} or no numbers where {list(expected.shape)} are due")
        worst = max(worst, relative_error(states, expected))
    if worst > TOLERANCE[torch.float32]:
        raise LoadError(f"the graph differs from the packed path by {worst:.0e}")
    return worst


def ratio_at(size: int, encoder: Encoder, graph: Graph, seconds: Seconds) -> float:
    """Seconds of the graph for one of the packed path, with so many tokens: of one item where it can be so long."""
    longest = min(size, graph.max_length)
    lengths = np.array([longest] * (size // longest), np.int32)
    ids = np.full(lengths.sum(), encoder.vocab_size // 2, np.int32)
    types = np.zeros_like(ids)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(seconds(lambda: encoder.packed(ids, lengths, lengths, types)))
        theirs.append(seconds(lambda: graph.hidden_states(ids, lengths, lengths, types, encoder.first_position)))
    return min(theirs) / min(ours)


def longest_seen(encoder: Encoder) -> int:
    """Of an item that is within every window of the model, whichever way its size is counted."""
    config = encoder.config.get_text_config()
    windows = [value for name in WINDOW_SETTINGS if isinstance(value := getattr(config, name, None), int) and value]
    return min(windows, default=1 << 30) // 2
