"""Comparison of a graph with the packed path: equal results, and the size of sub-batch up to which it is faster.

On a CPU the graph is a file for ONNX Runtime, on a GPU a set of CUDA graphs. The result is stored in the model's
measurements.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sie_triton.checkpoints.files import first_line
from sie_triton.engines.base import Unusable
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.onnx import graph as onnx
from sie_triton.engines.onnx.session import is_installed
from sie_triton.engines.torch.cuda_graphs import CapturedPasses
from sie_triton.engines.torch.encoder import PACKED, EncoderGraph, TorchEncoder
from sie_triton.engines.torch.facts import windows
from sie_triton.engines.torch.probe import TOLERANCE, largest_error, relative_error
from sie_triton.errors import LoadError

log = logging.getLogger(__name__)

# Times a call, in seconds.
Seconds = Callable[[Callable[[], object]], float]

# Ratio to the packed path beyond which larger sizes are not measured: the graph is slower there too.
HOPELESS = 1.5

# Attempts before the graph is refused; a process that ended may have been evicted instead of killed by the graph.
MOST_TRIES = 3

# Ratio below which a graph counts as faster, and not by chance.
FASTER = 0.95

# Lengths of the items of each pass that is compared.
PROBED = ((1,), (2,), (3, 1, 2), (7, 9), (33,), (5, 1, 17, 12))


def graph_name(part: str) -> str:
    """Key of the part's graph in the measurements."""
    return f"graph_{part}" if part else "graph"


def may_have_graph(encoder: TorchEncoder, measurements: Measurements, part: str) -> bool:
    """False if the graph is known not to be faster, or this engine cannot make one."""
    is_cpu = encoder.device.type == "cpu"
    if not encoder.is_exportable or (is_cpu and not (encoder.dtype is torch.float32 and is_installed())):
        return False
    known = measurements.get(graph_name(part))
    return encoder.path == PACKED and (known is None or known["max_tokens"] > 0)


def refuse(measurements: Measurements, part: str, reason: str) -> None:
    measurements.put(**{graph_name(part): {"max_tokens": 0, "reason": reason}})


def take_graph(
    encoder: TorchEncoder, path: Path, num_threads: int, measurements: Measurements, part: str, seconds: Seconds
) -> int:
    """Let `encoder` run small sub-batches as a graph if that is faster; return the largest size in tokens, or 0.

    On a CPU the graph is the file at `path`. Errors that say nothing about the graph, such as a lack of memory, are
    raised and not recorded.
    """
    tries_name = f"{graph_name(part)}_tries"
    tries = int(measurements.get(tries_name) or 0)
    measurements.put(**{tries_name: tries + 1})
    try:
        if tries >= MOST_TRIES:
            raise LoadError(f"the process ended in each of {tries} attempts to use the graph")
        graph = form_of(encoder, path, num_threads)
        known = measurements.get(graph_name(part)) or measured(encoder, graph, num_threads, seconds)
    except LoadError as exc:
        known = {"max_tokens": 0, "reason": first_line(exc)}
    except Unusable:
        raise
    except Exception:
        measurements.put(**{tries_name: tries})  # the process survives
        raise
    measurements.put(**{graph_name(part): known, tries_name: 0})
    log.info("graph of %s: %s", part or "the encoder", known)
    if known["max_tokens"]:
        graph.serve(known["max_tokens"], known["beside_others"])
        encoder.graph = graph
    return int(known["max_tokens"])


def form_of(encoder: TorchEncoder, path: Path, num_threads: int) -> EncoderGraph:
    """Make the graph for the encoder's device. Raise LoadError if the file cannot be opened."""
    if encoder.device.type == "cpu":
        return onnx.Graph(path, num_threads, is_causal=encoder.is_causal, max_length=longest_seen(encoder))
    return CapturedPasses(encoder)


def measured(encoder: TorchEncoder, graph: EncoderGraph, num_threads: int, seconds: Seconds) -> dict[str, Any]:
    """Measure the graph's limits. Raise LoadError if its results differ from those of the packed path."""
    error = probe_graph(encoder, graph)
    if encoder.device.type == "cpu":
        torch.set_num_threads(num_threads)
    ratios: dict[int, float] = {}
    for size in graph.sizes:
        ratios[size] = round(ratio_at(size, encoder, graph, seconds), 3)
        if ratios[size] > HOPELESS:
            break
    return {
        "max_tokens": largest(ratios),
        # Beside others, each of its threads is taken from another pass, so its time counts once per thread.
        "beside_others": largest({size: num_threads * ratio for size, ratio in ratios.items()}),
        "error": error,
        "ratios": {str(size): ratio for size, ratio in ratios.items()},
    }


def largest(ratios: Mapping[int, float]) -> int:
    """Return the best size limit for an alternative that takes `ratios` of the usual time, by size; 0: never use it.

    A single disturbed measurement changes the result little.

    >>> largest({4: 0.4, 8: 1.1, 16: 0.6, 32: 0.99})
    16
    """
    best, gain, most = 0, 0.0, 0.0
    for size, ratio in ratios.items():
        gain += FASTER - ratio
        if gain > most:
            best, most = size, gain
    return best


def probe_graph(encoder: TorchEncoder, graph: EncoderGraph) -> float:
    """Return the largest relative difference of a state. Raise LoadError if it is too large or the file cannot run."""
    rng, worst = np.random.default_rng(0), 0.0
    for seed, given in enumerate(PROBED):
        lengths = np.minimum(given, graph.max_length).astype(np.int32)
        num_tokens, draws = int(lengths.sum()), encoder.draws
        ids = draws.mixed(num_tokens, seed, starts=1, ends=1) if seed % 2 else draws.ordinary(num_tokens, seed)
        keys = np.maximum(1, lengths - (len(given) > 1)).astype(np.int32)
        types = rng.integers(0, max(1, encoder.num_token_types), lengths.sum(), dtype=np.int32)
        expected = encoder.packed(ids, lengths, keys, types)
        try:
            states = graph.hidden_states(ids, lengths, keys, types, encoder.positions(ids, lengths))
        except Exception as exc:  # the library's errors have no common class
            if encoder.device.type == "cuda":
                raise  # a fault of the device or its memory, which may pass
            raise LoadError(f"the graph cannot be run: {first_line(exc)}") from exc
        if states.shape != expected.shape or not bool(torch.isfinite(states).all()):
            raise LoadError(f"the graph gives {list(states.shape)} or non-finite values, not {list(expected.shape)}")
        worst = largest_error([worst, relative_error(states, expected)])
    if not worst <= TOLERANCE[encoder.dtype]:
        raise LoadError(f"the graph differs from the packed path by {worst:.0e}")
    return worst


def ratio_at(size: int, encoder: TorchEncoder, graph: EncoderGraph, seconds: Seconds) -> float:
    """Ratio of the graph's time to the packed path's, for `size` tokens in as few items as possible."""
    longest = min(size, graph.max_length)
    lengths = np.array([longest] * (size // longest), np.int32)
    ids = np.full(lengths.sum(), encoder.vocab_size // 2, np.int32)
    types, positions = np.zeros_like(ids), encoder.positions(ids, lengths)
    ours, theirs = [], []
    for _ in range(6):
        ours.append(seconds(lambda: ended(encoder.packed(ids, lengths, lengths, types))))
        theirs.append(seconds(lambda: ended(graph.hidden_states(ids, lengths, lengths, types, positions))))
    return min(theirs) / min(ours)


def ended(states: torch.Tensor) -> None:
    """Wait until `states` are computed: a GPU still works when a call has returned."""
    if states.is_cuda:
        torch.cuda.synchronize(states.device)


def longest_seen(encoder: TorchEncoder) -> int:
    """Maximum length of an item within every window of the model, whether a size counts one side or both."""
    return min(windows(encoder.config), default=1 << 30) // 2
