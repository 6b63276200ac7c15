"""Our packed forward against sentence-transformers on the same fixed-seed weights."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from sie_triton.contract.spec import Runtime
from sie_triton.engines.torch import prepack
from sie_triton.engines.torch.encoder import PACKED, PADDED
from sie_triton.engines.torch.precision import choose_dtype
from sie_triton.engines.torch.prepack import PrepackedLinear
from sie_triton.errors import LoadError
from tests.support.copies import update
from tests.support.items import Recognised
from tests.support.loading import load_adapter
from tests.support.models import build, save_bert
from tests.support.parity import TO_ITSELF, assert_parity, varied_texts

TEXTS = [text[:4000] for text in varied_texts(24)]

HEADS = {
    "all modes, dense, not normalised": {
        "pooling": ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
        "dense": 48,
        "normalize": False,
    },
    "prompt left out of pooling": {"include_prompt": False, "prompts": {"query": "search for: "}},
    "prompt left out of weighted pooling": {
        "include_prompt": False,
        "pooling": ("weightedmean", "cls", "max"),
        "prompts": {"query": "search for: "},
    },
}


class Ours(Recognised):
    """The three stages' arithmetic in one process."""

    def encode(self, texts, **given):
        return super().encode(texts, **given)["dense"]


PADDED_TOO = ("bert", "roberta", "xlm-roberta", "mpnet")  # compared below


@pytest.mark.parametrize("architecture", PADDED_TOO)
def test_padding_written_in_a_text_has_the_position_that_it_has_in_the_library(
    tmp_path, minilm_directory, architecture
):
    """Alone: in a batch the library's own padding hides nothing of it."""
    directory = save_bert(tmp_path, minilm_directory, architecture)
    update(directory / "config.json", pad_token_id=0)  # MiniLM's [PAD]
    texts = ["alpha [PAD] beta [PAD] gamma", "[PAD]", "[PAD][PAD] first", "last [PAD]", "[MASK] [SEP] [CLS] [UNK]", "x"]
    library, ours = SentenceTransformer(str(directory), device="cpu"), Ours(directory)
    assert ours.adapter.encoder.path == (PADDED if architecture == "mpnet" else PACKED)
    expected = np.concatenate([library.encode([text]) for text in texts])
    assert_parity(ours.encode(texts), expected)
    assert_parity(np.concatenate([ours.encode([text]) for text in texts]), expected)


@pytest.mark.parametrize("head", HEADS)
def test_pooling_and_heads(tmp_path, minilm_directory, head):
    library = build(tmp_path / "encoder", minilm_directory, **HEADS[head])
    library.save(str(tmp_path / "model"))
    ours, options = Ours(tmp_path / "model"), {}
    if library.prompts.get("query"):
        options = {"is_query": True}
    theirs = library.encode(TEXTS, prompt_name="query" if options else None)
    vectors = ours.encode(TEXTS, **options)
    assert_parity(vectors, theirs)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.linalg.norm(theirs, axis=1), rtol=1e-4)


def test_batching_does_not_change_vectors(minilm_directory):
    ours = Ours(minilm_directory)
    together = ours.encode(TEXTS)
    alone = np.concatenate([ours.encode([text]) for text in TEXTS])
    assert_parity(together, alone, TO_ITSELF)


def test_prepacked_layers_change_nothing(minilm_directory, monkeypatch):
    fused = Ours(minilm_directory).encode(TEXTS)
    monkeypatch.setattr(prepack, "can_prepack", lambda _: False)
    plain = Ours(minilm_directory)
    assert any(isinstance(m, torch.nn.Linear) for m in plain.adapter.encoder.model.modules())
    np.testing.assert_allclose(fused, plain.encode(TEXTS), atol=2e-6)


@pytest.mark.parametrize("cpu", ["this CPU", "a CPU without bfloat16 kernels"])
def test_bfloat16_stays_close(minilm_directory, cpu, monkeypatch):
    if cpu != "this CPU":
        monkeypatch.setattr(prepack, "_has_bfloat16", lambda: False)
    model = Ours(minilm_directory, runtime=Runtime(precision="bfloat16"))
    layers = {type(layer) for layer in model.adapter.encoder.model.modules()}
    assert (prepack.PrepackedLinear in layers) == prepack._has_bfloat16()
    library = SentenceTransformer(str(minilm_directory), device="cpu")
    assert_parity(model.encode(TEXTS[:8]), library.encode(TEXTS[:8]), 0.999)


def test_missing_weights_are_refused(tmp_path, minilm_directory):
    directory = save_bert(tmp_path, minilm_directory)
    spec = Ours(directory).spec
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(LoadError, match=r"lack encoder\.layer\.2"):
        load_adapter(spec, directory)


def test_the_weight_of_a_prepacked_layer_reads_as_nan():
    """A model that reads a prepacked layer's weight itself gets no usable number."""
    layer = PrepackedLinear(torch.nn.Linear(4, 3))
    assert layer.weight.shape == (3, 4)
    assert layer.weight.isnan().all()
    assert not layer(torch.zeros(1, 4)).isnan().any()


@pytest.mark.parametrize(
    ("precision", "device", "native", "dtype", "says_so"),
    [
        ("", "cpu", False, torch.float32, False),
        ("", "cuda", False, torch.float16, False),
        ("bfloat16", "cpu", False, torch.bfloat16, False),
        ("float16", "cpu", True, torch.bfloat16, True),
        ("float16", "cpu", False, torch.float32, True),
        ("float16", "cuda:1", False, torch.float16, False),
        ("int8", "cpu", True, torch.bfloat16, True),
        ("int8", "cpu", False, torch.float32, True),
        ("int8", "cuda", False, torch.float16, True),
    ],
)
def test_precision(monkeypatch, caplog, precision, device, native, dtype, says_so):
    monkeypatch.setattr("sie_triton.engines.torch.precision.computes_bfloat16", lambda: native)
    monkeypatch.setattr("sie_triton.engines.torch.precision.has_int8", lambda: False)
    assert choose_dtype(precision, device) == dtype
    assert bool(caplog.records) == says_so
