"""BGE-M3 against its formulas, in float64 on the states of transformers' own eager model, item by item."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from benchmarks.texts import texts
from sie_triton.contract import ENCODE_OUTPUTS, Batch, Ragged
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import PROMPT_TOKENS
from sie_triton.engines.torch.encoder import PACKED
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog import recognise
from sie_triton.models.catalog.select import recognised_by
from sie_triton.models.families import family
from sie_triton.models.weights import loadable
from tests.support.items import Recognised
from tests.support.loading import load_adapter
from tests.support.models import save_bge_m3

TEXTS = ["", "a", "the cat and the 🐈 and the cat", *texts(12, seed=3), " ".join(["many words"] * 400)]
OUTPUTS = ("dense", "sparse", "multivector")
DIM = 48


class Ours(Recognised):
    def __init__(self, directory: Path, **runtime) -> None:
        super().__init__(directory, runtime=Runtime(device="cpu", max_sub_batch_cost=2048, **runtime))

    def rows(self, items, *outputs):
        features = {**self.processor.encode(items), PROMPT_TOKENS.name: Ragged(np.zeros(len(items), np.int32))}
        return self.adapter.forward(Batch(features, np.zeros(len(items), np.bool_), frozenset(outputs)))


class Formulas:
    """Reference formulas: a text → its dense vector, sparse weights by token id, and vectors."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
        layers = (load_file(directory / f"{name}_linear.safetensors") for name in ("sparse", "colbert"))
        self.sparse, self.colbert = layers

    @torch.inference_mode()
    def __call__(self, text):
        ids = self.tokenizer(text, truncation=True, max_length=512, return_tensors="pt").input_ids
        states = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].double()
        weights = (states @ self.sparse["weight"].double().T + self.sparse["bias"].double())[:, 0].tolist()
        roles = self.tokenizer
        special = {roles.cls_token_id, roles.eos_token_id, roles.pad_token_id, roles.unk_token_id}
        largest: dict[int, float] = {}
        for token, weight in zip(ids[0].tolist(), weights, strict=True):
            if token not in special and weight > 0:
                largest[token] = max(weight, largest.get(token, 0.0))
        vectors = states[1:] @ self.colbert["weight"].double().T + self.colbert["bias"].double()
        return states[0].numpy(), largest, (vectors / vectors.norm(dim=-1, keepdim=True)).numpy()


def split(rows):
    """Split rows into (dense, sparse indices, sparse values, vectors) per item."""
    sparse, multivector = (np.cumsum(rows[f"{name}_lengths"])[:-1] for name in ("sparse", "multivector"))
    return list(
        zip(
            rows["dense"],
            np.split(rows["sparse_indices"], sparse),
            np.split(rows["sparse_values"], sparse),
            np.split(rows["multivector"], multivector),
            strict=True,
        )
    )


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_bge_m3(tmp_path_factory.mktemp("bge-m3"), minilm_directory, DIM)


@pytest.fixture(scope="module")
def ours(directory):
    return Ours(directory)


def test_the_same_as_the_formulas(ours, directory):
    assert ours.adapter.encoder.path == PACKED
    assert ours.adapter.weights_bytes == ours.adapter.encoder.weights_bytes + 4 * (65 + 65 * DIM)
    expected = Formulas(directory)
    for text, (dense, indices, values, vectors) in zip(TEXTS, split(ours.rows(TEXTS)), strict=True):
        their_dense, their_weights, their_vectors = expected(text)
        assert cosine(dense, their_dense) >= 0.99999
        assert indices.tolist() == sorted(their_weights)
        np.testing.assert_allclose(values, [their_weights[i] for i in indices], rtol=1e-4, atol=1e-6)
        assert vectors.shape == their_vectors.shape
        np.testing.assert_allclose(vectors, their_vectors, atol=2e-5)


def test_batch_equals_single(ours):
    for text, (dense, indices, values, vectors) in zip(TEXTS, split(ours.rows(TEXTS)), strict=True):
        ((alone, same, weights, single),) = split(ours.rows([text]))
        assert cosine(dense, alone) >= 0.999999
        np.testing.assert_array_equal(indices, same)
        np.testing.assert_allclose(values, weights, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(vectors, single, atol=1e-5)


@pytest.mark.parametrize("output", OUTPUTS)
def test_only_what_is_asked_for(ours, output):
    together, alone = ours.rows(TEXTS, *OUTPUTS), ours.rows(TEXTS, output)
    assert set(together) == {tensor.name for each in OUTPUTS for tensor in ENCODE_OUTPUTS[each].tensors}
    assert set(alone) == {tensor.name for tensor in ENCODE_OUTPUTS[output].tensors}
    for name, rows in alone.items():
        np.testing.assert_array_equal(rows, together[name])


def test_bfloat16_states(ours, directory):
    """The layers compute in float32 whatever the states are."""
    exact, rounded = split(ours.rows(TEXTS)), split(Ours(directory, precision="bfloat16").rows(TEXTS))
    for (dense, _, _, vectors), (theirs, _, values, others) in zip(exact, rounded, strict=True):
        assert cosine(dense, theirs) > 0.999
        assert (vectors * others).sum(-1).min() > 0.99
        assert {rows.dtype for rows in (theirs, values, others)} == {np.dtype(np.float32)}


def test_special_tokens_would_weigh_something(directory):
    """Negative control: tokens left out of sparse outputs would have weights."""
    other = Ours(directory)
    other.adapter._special_ids = ()
    assert {100, 101, 102} <= set(other.rows(TEXTS)["sparse_indices"].tolist())


def test_a_checkpoint_published_as_pickles_gives_the_same_results(ours, directory, tmp_path):
    published = shutil.copytree(directory, tmp_path / "published")
    for path in published.rglob("*.safetensors"):
        pickle = {"model": "pytorch_model.bin"}.get(path.stem, f"{path.stem}.pt")
        torch.save(load_file(path), path.with_name(pickle))
        path.unlink()
    spec, files = replace(ours.spec, weights=str(published)), family("bge_m3").files
    other = Ours(loadable(replace(spec, allow_pickle="tensors"), files, cache=tmp_path))
    expected = ours.rows(TEXTS)
    for name, rows in other.rows(TEXTS).items():
        np.testing.assert_array_equal(rows, expected[name])
    with pytest.raises(LoadError, match=r"colbert_linear.pt and 2 more: weights only as pickles"):
        loadable(spec, files, cache=tmp_path)
    with pytest.raises(CatalogError, match=r"sparse_linear.pt: weights only as pickles.*allow_pickle: tensors"):
        recognise(published, "m", {"weights_path": str(published)})


def test_without_modules_json_dense_vectors_use_the_first_token(ours, tmp_path, minilm_directory):
    directory = save_bge_m3(tmp_path, minilm_directory, DIM)
    (directory / "modules.json").unlink()
    other = Ours(directory)
    assert other.spec.profiles[0].parameters["normalize"]
    np.testing.assert_array_equal(other.rows(TEXTS, "dense")["dense"], ours.rows(TEXTS, "dense")["dense"])


def test_the_hub_is_asked_for_both_layers():
    wanted = ["1_Pooling/config.json", "colbert_linear.pt", "sparse_linear.pt", "tokenizer.json"]
    files = [*wanted, "onnx/model.onnx", "model.safetensors", "pytorch_model.bin"]
    assert list(filter_repo_objects(files, allow_patterns=list(recognised_by()))) == wanted


def refused(directory: Path, spec) -> LoadError:
    with pytest.raises(LoadError) as caught:
        load_adapter(spec, directory)
    return caught.value


@pytest.mark.parametrize("name", ["sparse_linear", "colbert_linear"])
def test_a_layer_that_cannot_be_used_is_named(ours, tmp_path, minilm_directory, name):
    directory = save_bge_m3(tmp_path, minilm_directory, DIM)
    path, layer = directory / f"{name}.safetensors", torch.nn.Linear(32, 7).state_dict()
    path.unlink()
    assert refused(directory, ours.spec).reason == "not found"
    with pytest.raises(CatalogError, match=f"{name}.safetensors is missing"):
        recognise(directory, "m", {"weights_path": str(directory)})
    for write in (
        lambda: path.write_bytes(b"no"),
        lambda: save_file(layer, path),
        lambda: save_file({"bias": layer["bias"]}, path),
    ):
        write()
        error = refused(directory, ours.spec)
        assert (error.reason, f"{directory / name}." in str(error)) == ("corrupt", True)
