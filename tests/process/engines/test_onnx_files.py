"""Checkpoints whose weights are an ONNX file: which file, and the same numbers as from safetensors."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from sie_triton.catalog import recognise
from sie_triton.checkpoints.onnx import graphs
from sie_triton.engines.onnx.engine import OnnxEncoder, OnnxEngine, OnnxModel, open_session
from sie_triton.errors import CatalogError, LoadError
from sie_triton.measurements import Measurements
from sie_triton.spec import ONNX, Runtime
from sie_triton.weights.onnx_choice import graph_of
from tests.support.loading import load_adapter, token_batch
from tests.support.models import save_pylate, save_splade
from tests.support.stages import spec

LENGTHS = np.array([9, 2, 31, 2, 8], np.int32)
IDS = np.random.default_rng(3).integers(1000, 20000, LENGTHS.sum(), dtype=np.int32)
IS_QUERY = np.array([True, False, False, True, False])


@pytest.fixture(scope="module")
def directories(tmp_path_factory, minilm_directory):
    """The same late-interaction model with safetensors and with a graph alone."""
    root = tmp_path_factory.mktemp("onnx")
    tensors = save_pylate(root / "tensors", minilm_directory)
    graph = shutil.copytree(tensors, root / "graph")
    (graph / "model.safetensors").unlink()
    (graph / "onnx").mkdir()
    model = transformers.AutoModel.from_pretrained(tensors, attn_implementation="eager", add_pooling_layer=False)
    names = ("input_ids", "attention_mask", "token_type_ids")
    torch.onnx.export(
        model.eval(),
        kwargs={name: torch.ones(2, 7, dtype=torch.long) for name in names},
        dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in names},
        input_names=names,
        output_names=["last_hidden_state"],
        dynamo=True,
        verbose=False,
    ).save(graph / "onnx" / "model.onnx")
    return tensors, graph


def of(directory):
    found = recognise(directory, "m", {"weights_path": str(directory)}).resolve(Runtime(device="cpu"))
    names = [str(path.relative_to(directory)) for path in directory.rglob("*")]
    if file := graph_of(found, (found.engine, ONNX), names):
        return replace(found, engine=ONNX, onnx_file=file)
    return found


def test_a_graph_gives_what_safetensors_do(directories):
    tensors, graph = directories
    assert (of(tensors).engine, of(graph).engine, of(graph).onnx_file) == ("torch", "onnx", "onnx/model.onnx")
    batch = token_batch(IDS, LENGTHS, is_query=IS_QUERY, outputs=("multivector",))
    expected, found = (load_adapter(of(each), each).forward(batch) for each in directories)
    assert expected.keys() == found.keys()
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, atol=2e-6)
    alone = load_adapter(of(graph), graph).forward(
        token_batch(IDS[:9], LENGTHS[:1], is_query=IS_QUERY[:1], outputs=("multivector",))
    )
    np.testing.assert_allclose(alone["multivector"], found["multivector"][: len(alone["multivector"])], atol=2e-6)


class Summing(torch.nn.Module):
    """A classifier whose logits are the sum of an item's ids, and their number."""

    def forward(self, input_ids, attention_mask):
        return torch.stack([(input_ids * attention_mask).sum(1), attention_mask.sum(1)], 1).float()


def test_logits_are_in_the_order_of_the_items(tmp_path):
    """They are computed by length, each length by itself: here items 1, 2 and 0."""
    names = ("input_ids", "attention_mask")
    torch.onnx.export(
        Summing(),
        kwargs={name: torch.ones(2, 7, dtype=torch.long) for name in names},
        dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in names},
        input_names=names,
        output_names=["logits"],
        dynamo=True,
        verbose=False,
    ).save(tmp_path / "model.onnx")
    model = OnnxModel(open_session(tmp_path / "model.onnx", "cpu", 1), tmp_path / "model.onnx", 100, 0)
    lengths = np.array([90, 2, 30], np.int32)
    ids = np.repeat(np.array([1, 10, 20], np.int32), lengths)
    logits = OnnxEncoder(model, ("logits",), rank=2).logits(ids, lengths, np.zeros_like(ids))
    assert logits.tolist() == [[90, 90], [20, 2], [600, 30]]


def test_onnx_graphs_are_preferred_in_order():
    names = [
        "onnx/model_qint8_arm64.onnx",
        "onnx/model_O3.onnx",
        "model.onnx",
        "onnx/model.onnx",
        "a/b/model.onnx",
        "x",
    ]
    assert graphs(names) == ["onnx/model.onnx", "model.onnx", "onnx/model_O3.onnx", "onnx/model_qint8_arm64.onnx"]


BOTH = ["onnx/model.onnx", "onnx/model_O3.onnx", "model.safetensors"]
CHOICES = [
    ({}, "auto", BOTH, ""),
    ({}, "auto", ["onnx/model_O3.onnx", "2_Dense/model.safetensors"], "onnx/model_O3.onnx"),
    ({}, "onnx", BOTH, "onnx/model.onnx"),
    ({}, "onnx", ["model.safetensors"], ""),
    ({}, "torch", BOTH[:1], ""),
    ({"engine": ONNX}, "torch", BOTH, "onnx/model.onnx"),
    ({"engine": ONNX, "onnx_file": "onnx/model_O3.onnx"}, "auto", BOTH, "onnx/model_O3.onnx"),
    ({"engine": "remote"}, "onnx", BOTH, ""),
]


@pytest.mark.parametrize(("given", "setting", "names", "file"), CHOICES)
def test_the_setting_file_and_profile_decide_about_onnx(given, setting, names, file):
    asked = spec(**given, runtime=Runtime(engine=setting))
    assert graph_of(asked, ("torch", "onnx"), names) == file
    if not given:
        assert graph_of(asked, ("torch",), names) == ""


def test_a_missing_file_is_reported():
    with pytest.raises(
        LoadError, match=r"onnx_file: model\.onnx cannot be served from .*; it has onnx/model\.onnx, onnx/"
    ):
        graph_of(spec(engine=ONNX, onnx_file="model.onnx"), ("torch", "onnx"), BOTH)
    with pytest.raises(LoadError, match=r"engine: onnx cannot be served from .*; it has no \*\.onnx and no onnx/"):
        graph_of(spec(engine=ONNX), ("torch", "onnx"), ["model.safetensors"])


def test_graphs_of_another_form_are_refused(directories, tmp_path):
    _, graph = directories
    engine = OnnxEngine(of(graph), "cpu", Measurements())
    with pytest.raises(LoadError, match=r"has the outputs last_hidden_state \[.*\]; it needs logits"):
        engine.classifier(engine.load(graph))
    (tmp_path / "onnx").mkdir()
    shutil.copy(graph / "config.json", tmp_path)
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"\x08")
    with pytest.raises(LoadError, match=r"onnx/model\.onnx: ONNX Runtime cannot open it"):
        engine.load(tmp_path)


def test_a_family_that_needs_the_layers_refuses_onnx(tmp_path, minilm_directory):
    directory = save_splade(tmp_path, minilm_directory)
    (directory / "onnx").mkdir()
    (directory / "model.safetensors").rename(directory / "onnx" / "model.onnx")
    with pytest.raises(CatalogError, match=r"onnx/model\.onnx is ONNX; models of this kind are read from saf"):
        recognise(directory, "m", {"weights_path": str(directory)})
