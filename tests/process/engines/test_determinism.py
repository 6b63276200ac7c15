"""The same text gives the same vector, whatever shares its batch and whichever thread computes it."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
import torch

from sie_triton.contract.spec import Runtime
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch import cpu_kernels as kernels
from sie_triton.engines.torch.encoder import TorchEncoder, load_model
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.export import export
from sie_triton.engines.torch.graph_comparison import take_graph
from sie_triton.engines.torch.precision import INT8
from tests.process.engines.test_graphs import faster
from tests.support.models import save_encoder
from tests.support.stages import spec

# float32, with a graph for small batches.
GRAPH = "graph"

# Largest difference of an entry from that of the text alone, relative to the largest entry, by precision.
BOUNDS = {"float32": 2e-6, "bfloat16": 2e-3, INT8: 2e-6, GRAPH: 1e-5}

# Their products differ in the number of rows that a kernel takes at a time, their attention, and their positions.
ARCHITECTURES = ("bert", "modernbert", "wide", "qwen3")

LENGTHS = np.array([1, 2, 5, 9, 17, 33, 64, 90, 128], np.int32)
NUM_BATCHES, NUM_LANES = 12, 2


def loaded(directory, precision):
    of = Runtime(precision="float32" if precision == GRAPH else precision)
    engine = TorchEngine(spec(max_sequence_length=128, runtime=of), "cpu", Measurements())
    encoder = engine.encoder(engine.load(directory))
    engine.settle(encoder)
    engine.round_weights(dict, lambda *_: "")
    if precision == GRAPH:
        export(TorchEncoder(load_model(directory, torch.float32, "cpu")), directory / "graph.onnx")
        assert take_graph(encoder, directory / "graph.onnx", 1, Measurements(), "", faster())
    return encoder


def vectors(encoder, texts):
    """Return the vector of each text, computed in one pass."""
    lengths = np.array([len(each) for each in texts], np.int32)
    states = encoder.hidden_states(np.concatenate(texts), lengths).float().split(lengths.tolist())
    return [each.mean(0).numpy() for each in states]


def difference(found, expected):
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    ("architecture", "precision"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if case[1] == GRAPH and case[0] != "bert" else [])
        for case in product(ARCHITECTURES, BOUNDS)
    ],
)
def test_a_vector_depends_on_no_other_text_and_no_thread(tmp_path, minilm_directory, architecture, precision):
    if precision == INT8 and not kernels.has_int8():
        pytest.skip("this processor or this machine has no 8-bit kernel")
    save_encoder(tmp_path, minilm_directory, architecture)
    encoder, rng = loaded(tmp_path, precision), np.random.default_rng(3)
    texts = [rng.integers(1, encoder.vocab_size, length, dtype=np.int32) for length in LENGTHS]
    alone = [vectors(encoder, [text])[0] for text in texts]

    def worst(seed):
        """Compute a batch of random texts, some of them several times; return the largest difference."""
        chosen = np.random.default_rng(seed).integers(len(texts), size=1 + seed % 7)
        found = vectors(encoder, [texts[i] for i in chosen])
        return max(difference(vector, alone[i]) for vector, i in zip(found, chosen, strict=True))

    with ThreadPoolExecutor(NUM_LANES) as lanes:
        found = max(lanes.map(worst, range(NUM_BATCHES)))
    print(f"{architecture} in {precision}: {found:.1e}")
    assert found <= BOUNDS[precision]
