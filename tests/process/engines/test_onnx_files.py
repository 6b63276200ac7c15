"""Checkpoints whose weights are an ONNX file: which file, and the same numbers as from safetensors."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from sie_triton.checkpoints.onnx import graphs
from sie_triton.contract.spec import ONNX, Runtime
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.onnx.engine import OnnxEncoder, OnnxEngine, OnnxModel, open_session
from sie_triton.engines.torch.transfers import Indices
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog import recognise
from sie_triton.models.weights.locate import graph_of
from tests.support.loading import load_adapter, token_batch
from tests.support.models import save_pylate, save_splade
from tests.support.pretended_gpu import PretendedGpu
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


def test_states_go_to_the_gpu_in_one_upload(directories):
    """It carries what the caller reads there, too, and they are those of a CPU."""
    _, graph = directories
    model = OnnxEngine(of(graph), "cpu", Measurements()).load(graph)
    expected = OnnxEncoder(model, ("last_hidden_state",), 3).hidden_states(IDS, LENGTHS, LENGTHS - 1)
    gpu, after = PretendedGpu(), Indices(np.arange(3))
    with gpu:
        encoder = OnnxEncoder(model, ("last_hidden_state",), 3, "cuda:0")
        found = encoder.hidden_states(IDS, LENGTHS, LENGTHS - 1, extra_indices=[after])
        assert after.on(found.device)[0].held.tolist() == [0, 1, 2]
    assert torch.equal(found.held, expected)


class Summing(torch.nn.Module):
    """A classifier whose logits are the sum of an item's ids, and their number."""

    def forward(self, input_ids, attention_mask):
        return torch.stack([(input_ids * attention_mask).sum(1), attention_mask.sum(1)], 1).float()


def test_logits_are_in_the_order_of_the_items(tmp_path):
    """They are computed by length, each length by itself: here items 1, 2 and 0."""
    model = exported(tmp_path, Summing(), ("input_ids", "attention_mask"), "logits")
    lengths = np.array([90, 2, 30], np.int32)
    ids = np.repeat(np.array([1, 10, 20], np.int32), lengths)
    logits = OnnxEncoder(model, ("logits",), rank=2).logits(ids, lengths, np.zeros_like(ids))
    assert logits.tolist() == [[90, 90], [20, 2], [600, 30]]


def exported(directory, module, names, output, config=None):
    """The module as a graph with inputs of these names."""
    torch.onnx.export(
        module,
        kwargs={name: torch.ones(2, 7, dtype=torch.long) for name in names},
        dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in names},
        input_names=names,
        output_names=[output],
        dynamo=True,
        verbose=False,
    ).save(directory / "model.onnx")
    session = open_session(directory / "model.onnx", "cpu", 1)
    return OnnxModel(session, directory / "model.onnx", config or transformers.BertConfig(), 0)


class LastToken(torch.nn.Module):
    """A classifier of the last token of a row, or the last that is not `padding`, as transformers writes decoders."""

    def __init__(self, padding):
        super().__init__()
        self.padding = padding

    def forward(self, input_ids):
        places = torch.full_like(input_ids[:, :1], input_ids.shape[1] - 1)
        if self.padding is not None:
            counted = torch.arange(input_ids.shape[1], dtype=torch.long) * (input_ids != self.padding)
            places = counted.argmax(1, keepdim=True)
        return input_ids.gather(1, places).float()


@pytest.mark.parametrize("padding", [7, None])
def test_a_graph_that_reads_the_last_token_never_reads_padding_of_the_batch(tmp_path, padding):
    config = transformers.GPT2Config(pad_token_id=padding)
    model = exported(tmp_path, LastToken(padding), ("input_ids",), "logits", config)
    lengths = np.array([17, 16, 18], np.int32)
    ids = np.arange(100, 151, dtype=np.int32)
    ids[31:33] = 7  # the tokenizer's own end
    logits = OnnxEncoder(model, ("logits",), rank=2).logits(ids, lengths, np.zeros_like(ids))
    assert logits[:, 0].tolist() == [116, 7 if padding is None else 130, 150]


class Positions(torch.nn.Module):
    def forward(self, input_ids, position_ids):
        return torch.stack([input_ids, position_ids], -1).float()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (transformers.BertConfig(), [0, 1, 2, 3, 0, 1]),
        (transformers.XLMRobertaConfig(pad_token_id=1), [2, 1, 3, 4, 1, 2]),
    ],
    ids=["BERT", "XLM-RoBERTa"],
)
def test_a_graph_reads_the_positions_of_its_architecture(tmp_path, config, expected):
    model = exported(tmp_path, Positions(), ("input_ids", "position_ids"), "last_hidden_state", config)
    states = OnnxEncoder(model, ("last_hidden_state",), rank=3).hidden_states(
        np.array([5, 1, 6, 7, 1, 8], np.int32), np.array([4, 2], np.int32)
    )
    assert states[:, 1].tolist() == expected


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
