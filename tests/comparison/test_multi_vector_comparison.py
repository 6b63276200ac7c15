"""Late-interaction models equal sentence-transformers' MultiVectorEncoder on the same weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask

from benchmarks.texts import texts
from sie_triton.contract import Batch
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.engines.torch.encoder import PACKED, PADDED
from sie_triton.errors import LoadError
from sie_triton.models.catalog import recognise
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.catalog.select import recognised_by
from sie_triton.models.families.multivector import MultiVectorTokenizer
from sie_triton.models.families.multivector.stanford_colbert import is_stanford_colbert, read_multi_vector
from sie_triton.models.families.shared.token_pooling import pool, with_pooling
from tests.support.copies import update
from tests.support.loading import load_adapter
from tests.support.models import save_encoder, save_pylate, save_stanford

TEXTS = ["", "a", "Stop. Look, listen!", *texts(4, seed=3), " ".join(["many, words."] * 200)]
DIM = 32  # also the size used by save_pylate and save_stanford

# Relevant excerpt of the configuration of colbert-ir/colbertv2.0.
COLBERT_V2 = {
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "dim": 128,
    "similarity": "cosine",
    "query_maxlen": 32,
    "doc_maxlen": 180,
    "attend_to_mask_tokens": False,
    "mask_punctuation": True,
}


def spec(directory: Path) -> ModelSpec:
    runtime = Runtime(device="cpu", max_sub_batch_cost=2048)
    return ModelSpec("m", str(directory), "multivector", {"multivector": DIM}, 512, 16384, runtime=runtime)


def save_native(root: Path, tokenizer: Path, architecture: str, **transformer) -> Path:
    """Save a model as MultiVectorEncoder does."""
    save_encoder(root / "encoder", tokenizer, architecture)
    torch.manual_seed(3)
    modules = [
        Transformer(str(root / "encoder"), **transformer),
        Dense(64, DIM, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=list(".,!")),
        Normalize(module_input_name="token_embeddings"),
    ]
    prompts = {"query": "[unused0]", "document": "[unused1]"}
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save(str(root / "model"))
    return root / "model"


def vectors(adapter, tokenizer, items, *, is_query):
    role = "query" if is_query else "document"
    features = tokenizer.encode([tokenizer.prompts[role] + item for item in items], is_query=is_query)
    rows = adapter.forward(Batch(features, np.full(len(items), is_query), frozenset({"multivector"})))
    return np.split(rows["multivector"], np.cumsum(rows["multivector_lengths"])[:-1])


def check(directory: Path, path: str = PACKED) -> None:
    adapter = load_adapter(spec(directory), directory)
    tokenizer = MultiVectorTokenizer.of(read_multi_vector(directory), 512)
    reference = MultiVectorEncoder(str(directory), device="cpu")
    assert adapter.encoder.path == path
    for is_query in (True, False):
        encode = reference.encode_query if is_query else reference.encode_document
        expected = [row.numpy() for row in encode(TEXTS, batch_size=4)]
        together = vectors(adapter, tokenizer, TEXTS, is_query=is_query)
        alone = [vectors(adapter, tokenizer, [text], is_query=is_query)[0] for text in TEXTS]
        for ours, single, theirs in zip(together, alone, expected, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, atol=2e-5)
            np.testing.assert_allclose(ours, single, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("bert", {"query_expansion": {"strategy": "fixed", "length": 32}, "document_length": 100}),
        ("bert", {"query_expansion": {"strategy": "min", "length": 16, "attend": True}}),
        ("bert", {"query_length": 24}),
        ("modernbert", {"query_expansion": {"strategy": "fixed", "length": 32}}),
    ],
)
def test_the_same_as_multi_vector_encoder(tmp_path, minilm_directory, architecture, options):
    check(save_native(tmp_path, minilm_directory, architecture, **options))


@pytest.mark.parametrize(("architecture", "path"), [("deberta", PADDED), ("modernbert", PACKED)])
def test_tokens_that_nothing_attends_to_are_the_librarys(tmp_path, minilm_directory, architecture, path):
    """DeBERTa lets them attend to each other alone; in ModernBERT, the text is out of the windows of some."""
    expansion = {"strategy": "fixed", "length": 100}
    check(save_native(tmp_path, minilm_directory, architecture, query_expansion=expansion), path)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False},
        {"skiplist_words": ["a"], "query_prefix": "query: "},
    ],
)
def test_pylate_directories(tmp_path, minilm_directory, config):
    check(save_pylate(tmp_path, minilm_directory, **config))


@pytest.mark.parametrize(
    ("metadata", "architecture"),
    [
        (COLBERT_V2, "bert"),
        ({**COLBERT_V2, "attend_to_mask_tokens": True, "query_maxlen": 16, "doc_maxlen": 100}, "bert"),
        ({**COLBERT_V2, "mask_punctuation": False, "query_token_id": "[unused5]", "doc_token_id": "[unused6]"}, "bert"),
        (None, "bert"),
        (COLBERT_V2, "distilbert"),
    ],
)
def test_stanford_checkpoints(tmp_path, minilm_directory, metadata, architecture):
    directory = save_stanford(tmp_path, minilm_directory, metadata, architecture)
    check(directory)
    config = recognise(directory, "mine", {"weights_path": str(directory)})
    resolved = config.resolve(Runtime())
    assert (resolved.family, resolved.dims["multivector"], resolved.max_sequence_length) == ("multivector", DIM, 512)


@pytest.mark.parametrize(("metadata", "dim"), [({"dim": 96}, 96), ({}, 128), (None, 128)])
def test_recognising_a_stanford_checkpoint_needs_its_small_files_only(tmp_path, minilm_directory, metadata, dim):
    directory = save_stanford(tmp_path, minilm_directory, metadata)
    (directory / "model.safetensors").unlink()
    assert family_in(directory)[0] == "multivector"
    assert read_multi_vector(directory).dim == dim
    needed = {path.name for path in directory.iterdir()}
    assert set(filter_repo_objects([*needed, "pytorch_model.bin"], allow_patterns=list(recognised_by()))) == needed


def test_modules_json_takes_precedence_over_the_architecture(tmp_path, minilm_directory):
    directory = save_pylate(tmp_path, minilm_directory, query_length=16)
    update(directory / "config.json", architectures=["HF_ColBERT"])
    assert read_multi_vector(directory).text.lengths.query == 16
    (directory / "modules.json").unlink()
    assert is_stanford_colbert(directory)


def refused(directory: Path) -> LoadError:
    with pytest.raises(LoadError) as caught:
        load_adapter(spec(directory), directory)
    return caught.value


def test_a_stanford_checkpoint_that_cannot_be_used_says_why(tmp_path, minilm_directory):
    directory = save_stanford(tmp_path, minilm_directory, COLBERT_V2)
    path = directory / "model.safetensors"
    weights = load(path.read_bytes())
    for write in (
        lambda: path.write_bytes(b"no"),
        lambda: save_file({name: weight for name, weight in weights.items() if name != "linear.weight"}, path),
        lambda: save_file({**weights, "linear.weight": torch.zeros(32, 7)}, path),
        lambda: save_file({"linear.weight": weights["linear.weight"]}, path),
    ):
        write()
        error = refused(directory)
        assert (str(directory) in str(error), error.reason) == (True, "corrupt"), error
    path.rename(directory / "pytorch_model.bin")
    error = refused(directory)
    assert ("no *.safetensors in" in str(error), error.reason) == (True, "not found")
    for name in ("artifact.metadata", "config.json"):
        (directory / name).write_text("")
        error = refused(directory)
        assert (name in str(error), error.reason) == (True, "corrupt")


def test_attending_to_expansion_tokens_changes_vectors(tmp_path, minilm_directory):
    """Negative control: attending to expansion tokens, against the model's configuration, changes vectors."""
    directory = save_pylate(tmp_path, minilm_directory)
    adapter = load_adapter(spec(directory), directory)
    tokenizer = MultiVectorTokenizer.of(read_multi_vector(directory), 512)
    (right,) = vectors(adapter, tokenizer, ["who?"], is_query=True)
    tokenizer._filling = replace(tokenizer._filling, number=tokenizer._filling.number % 30522)
    (wrong,) = vectors(adapter, tokenizer, ["who?"], is_query=True)
    assert np.abs(right - wrong).max() > 0.01


def check_same_rows(ours, theirs):
    """The library orders clusters by its dendrogram, we by their first members."""
    assert ours.shape == theirs.shape
    distances = np.abs(ours[:, None] - theirs[None]).max(-1)
    assert max(distances.min(0).max(), distances.min(1).max()) < 2e-5


@pytest.mark.parametrize("num_protected", [0, 1, 3])
@pytest.mark.parametrize("factor", [1.5, 2, 3, 1000])
def test_vectors_are_pooled_as_by_the_library(factor, num_protected):
    pooling = HierarchicalTokenPooling(factor, num_protected_tokens=num_protected)
    rng = np.random.default_rng(1)
    for number in (1, 2, 3, 5, 40, 300):
        rows = rng.standard_normal((number, DIM)).astype(np.float32)
        rows = rows[rng.integers(0, number, number)] + rng.normal(0, 0.2, rows.shape).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        (theirs,) = pooling.pool([torch.from_numpy(rows)])
        check_same_rows(pool(rows, factor, num_protected), theirs.numpy())


def test_equal_vectors_become_one():
    rows = np.eye(DIM, dtype=np.float32)[[0, 1, 1, 1, 2, 1]]
    (theirs,) = HierarchicalTokenPooling(1.25).pool([torch.from_numpy(rows)])
    ours = pool(rows, 1.25)
    check_same_rows(ours, theirs.numpy())
    assert ours.argmax(1).tolist() == [0, 1, 2]


def test_only_documents_are_pooled_each_as_its_request_says(tmp_path, minilm_directory):
    directory = save_native(tmp_path, minilm_directory, "bert")
    adapter = load_adapter(spec(directory), directory)
    tokenizer = MultiVectorTokenizer.of(read_multi_vector(directory), 512)
    reference = MultiVectorEncoder(str(directory), device="cpu")
    some = texts(4, seed=3)
    features = tokenizer.encode([tokenizer.prompts["document"] + text for text in some], is_query=False)
    batch = Batch(features, np.array([False, False, True, False]), frozenset({"multivector"}))
    asked = [{"pool_factor": 2.0}, {}, {"pool_factor": 2.0}, {"pool_factor": 3.0, "num_protected_tokens": 2}]
    rows = with_pooling(adapter.forward(batch), replace(batch, options=asked))
    ours = np.split(rows["multivector"], np.cumsum(rows["multivector_lengths"])[:-1])
    for mine, text, factor, num_protected in zip(ours, some, (2, None, None, 3), (1, 1, 1, 2), strict=True):
        pooling = HierarchicalTokenPooling(factor, num_protected_tokens=num_protected) if factor else None
        check_same_rows(mine, reference.encode_document(text, token_pooling=pooling).numpy())
