"""LoRA adapters are added and removed during forward passes; an unusable one changes nothing."""

import json
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.texts import texts
from sie_triton.checkpoints.lora import UNSERVED, LoraFiles
from sie_triton.engines.torch.lora_layers import Adapted
from sie_triton.errors import LoadError, ModelError
from tests.support.extraction import Extractor
from tests.support.gliners import save_gliner_bi
from tests.support.loras import Encoding, save_lora
from tests.support.models import save_bert

TEXTS = ["", "x", *texts(4, seed=3)]
TARGETS = ["query", "intermediate.dense", "output.dense"]
QUERY = "base_model.model.encoder.layer.0.attention.self.query"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory, minilm_directory):
    """Model with the adapter `one`; its `saved` is the directory of another adapter."""
    root = tmp_path_factory.mktemp("lora")
    made = Encoding(save_bert(root, minilm_directory))
    made.add("one", root / "one", target_modules=TARGETS)
    save_lora(root / "saved", made.library[0].model, seed=2, target_modules=TARGETS)
    made.saved, made.directory = root / "saved", root / "model"
    return made


@pytest.fixture
def lora(model, tmp_path):
    """Copy of `saved` that a test may change."""
    return shutil.copytree(model.saved, tmp_path / "lora")


def configure(directory, **changes):
    config = json.loads((directory / CONFIG).read_text())
    (directory / CONFIG).write_text(json.dumps({**config, **changes}))


def reweigh(directory, change):
    """Rewrite the tensors; `change` modifies them in place or returns others."""
    weights = load_file(directory / WEIGHTS)
    save_file(change(weights) or weights, directory / WEIGHTS)


def without(*names):
    return lambda weights: {name: each for name, each in weights.items() if name not in names}


def with_one(name, *shape, value=1.0):
    return lambda weights: {**weights, name: torch.full(shape, value)}


def renamed(old, new):
    return lambda weights: {name.replace(old, new): each for name, each in weights.items()}


def wrapped(model):
    return sum(isinstance(module, Adapted) for module in model.encoder.model.modules())


SETTINGS = [
    ({"peft_type": "IA3"}, "peft_type 'IA3' cannot be served; supported is LORA"),
    ({"bias": "lora_only"}, "bias 'lora_only' changes the biases of the base; train with bias none"),
    *[({name: [1]}, f"{name} cannot be served; train without it, or merge") for name in UNSERVED],
    (
        {"init_lora_weights": "pissa_niter_4"},
        "'pissa_niter_4' also changes the weights of the base; save the adapter as plain",
    ),
    ({"r": "8"}, "r: must be a whole number from 1"),
    ({"r": 8}, "has rank 4, but its adapter_config.json says 8"),
    ({"lora_alpha": None, "r": 0}, "r: must be a whole number from 1"),
    ({"lora_alpha": "16"}, "lora_alpha: must be a number"),
    ({"rank_pattern": {"(a+)+b": 4}}, r"rank_pattern: '\(a\+\)\+b': must be a module's name"),
    ({"rank_pattern": {f"x{i}": 4 for i in range(1001)}}, "rank_pattern: has 1001 patterns; at most 1000 are read"),
    ({"alpha_pattern": {".*.*.*.*x": 4}}, "alpha_pattern: .* must be a module's name, or a pattern of letters"),
    ({"use_dora": True}, "lora_magnitude_vector is missing; save the adapter again"),
    ({"lora_bias": True}, "lora_B.bias is missing; save the adapter again"),
    ({"modules_to_save": ["classifier"]}, r"lacks the weights of 'classifier' \(modules_to_save\)"),
]
FIRST_A, FIRST_B = f"{QUERY}.lora_A.weight", f"{QUERY}.lora_B.weight"
MADE_FOR = "it was made for '.*/model': serve it with that model"
CHANGES = [
    (with_one(FIRST_A, 4, 32), rf"query: lora_A.weight is \[4, 32\], this model needs \[4, 64\]; {MADE_FOR}"),
    (with_one(FIRST_A), rf"query: lora_A.weight is \[\], this model needs \[4, 64\]; {MADE_FOR}"),
    (with_one(FIRST_B, 4), rf"query: lora_B.weight is \[4\], this model needs \[64, 4\]; {MADE_FOR}"),
    (without(FIRST_B), "query: lora_B.weight is missing; save the adapter again"),
    (with_one(f"{QUERY}.lora_B.bias", 64), "query: lora_B.bias contradicts its adapter_config.json"),
    (with_one(f"{QUERY}.lora_magnitude_vector", 64), "query: lora_magnitude_vector contradicts"),
    (with_one(f"{QUERY}.lora_E", 64), "query.lora_E' is not a weight of a LoRA adapter in PEFT's format"),
    (with_one(FIRST_B, 64, 4, value=float("nan")), "query: has numbers that are not finite"),
    (with_one(FIRST_B, 64, 4, value=3e38), "the model's states overflow with it|not finite"),
    (renamed("encoder.layer", "model.layers"), f"has weights for 'model.layers.0.* and 5 more, which.*; {MADE_FOR}"),
    (renamed("layer.1", "layer.7"), f"has weights for 'encoder.layer.7.*, which this model does not have.*{MADE_FOR}"),
    (lambda _: {"base_model.model.score.weight": torch.ones(1, 64)}, "has weights for 'score', which this model does"),
    (lambda _: {"base_model.model.pooler.dense.lora_A.weight": torch.ones(1)}, "has no weights for layers of this mo"),
    (
        with_one("base_model.model.embeddings.word_embeddings.weight", 30523, 64),
        r"word_embeddings: weight is \[30523, 64\], this model needs \[30522, 64\]",
    ),
    (
        with_one("base_model.model.embeddings.LayerNorm.weight", 64),
        "embeddings.LayerNorm: is a LayerNorm; only linear layers and embeddings can be adapted",
    ),
    (with_one("base_model.model.bert.encoder.layer.1.output.dense.weight", 64, 128), "adapts more than one encoder"),
]
FILES = [
    (lambda d: (d / CONFIG).unlink(), "adapter_config.json is missing", "not found"),
    (lambda d: (d / CONFIG).write_text("{"), "cannot be read", "corrupt"),
    (lambda d: (d / WEIGHTS).unlink(), f"{WEIGHTS} is missing", "not found"),
    (lambda d: (d / WEIGHTS).rename(d / "adapter_model.bin"), "adapter_model.bin: is a pickle.*safe_", "unsupported"),
    (
        lambda d: (d / WEIGHTS).write_bytes((d / WEIGHTS).read_bytes()[:-9]),
        "it is truncated; fetch it again",
        "corrupt",
    ),
    (lambda d: (d / WEIGHTS).write_bytes(b"no safetensors"), "is not a safetensors file", "corrupt"),
]
REFUSED = [
    *[(lambda d, changes=changes: configure(d, **changes), message, "") for changes, message in SETTINGS],
    *[(lambda d, change=change: reweigh(d, change), message, "") for change, message in CHANGES],
    *FILES,
]


def test_an_unusable_adapter_is_refused_with_the_reason_and_changes_nothing(model, tmp_path):
    base, adapted, layers = model(TEXTS), model(TEXTS, "one"), wrapped(model)
    for number, (change, message, reason) in enumerate(REFUSED):
        directory = shutil.copytree(model.saved, tmp_path / str(number))
        change(directory)
        for name in ("one", "other"):  # as a replacement, and as a new adapter
            with pytest.raises(LoadError, match=message) as failure:
                model.encoder.add_lora(name, directory)
            assert failure.value.reason == (reason or failure.value.reason)
            assert failure.value.reason in ("corrupt", "not found", "unsupported")
        assert wrapped(model) == layers
    np.testing.assert_array_equal(model(TEXTS), base)
    np.testing.assert_array_equal(model(TEXTS, "one"), adapted)
    with pytest.raises(ModelError, match="LoRA adapter other: is not loaded"):
        model(TEXTS, "other")


def test_layers_that_are_not_run_are_refused(tmp_path, minilm_directory):
    """DeBERTa reads its table of relative positions without running the layer."""
    model = Encoding(save_bert(tmp_path, minilm_directory, "deberta"))
    save_lora(tmp_path / "lora", model.library[0].model, target_modules=["query_proj", "rel_embeddings"])
    with pytest.raises(LoadError, match=r"encoder.rel_embeddings: this model does not use that layer; train"):
        model.encoder.add_lora("one", tmp_path / "lora")
    assert not wrapped(model)


def test_a_table_that_is_saved_must_be_the_bases(model, tmp_path):
    """PEFT saves some base tables with the adapter; one of another size or with other values is refused."""
    layer, table = "embeddings.word_embeddings", model.library[0].model.embeddings.word_embeddings.weight.detach()
    save_lora(tmp_path, model.library[0].model, target_modules=["word_embeddings"])

    def add(saved):
        reweigh(tmp_path, lambda weights: {**weights, f"base_model.model.{layer}.base_layer.weight": saved})
        return model.encoder.add_lora("other", tmp_path)

    assert add(table.half()) == 4 * 4 * (30522 + 64)
    model.encoder.remove_lora("other")
    with pytest.raises(LoadError, match=f"{layer}: differs from the base's; add it to modules_to_save"):
        add(table + 0.1)
    with pytest.raises(
        LoadError, match=rf"{layer}: base_layer.weight is \[30521, 64\], this model needs \[30522, 64\]"
    ):
        add(table[:-1])


def test_adapters_for_the_label_encoder_are_refused(tmp_path, minilm_directory):
    """The layers of both encoders have the same names."""
    library = save_gliner_bi(tmp_path, minilm_directory)
    target = r".*labels_encoder.*\.query"
    save_lora(tmp_path / "lora", library.model, target_modules=target)
    with pytest.raises(LoadError, match=r"has weights for 'token_rep_layer.labels_encoder"):
        Extractor("gliner_bi", tmp_path / "model").adapter.encoder.add_lora("one", tmp_path / "lora")


def test_weight_names_may_have_enclosing_module_prefixes(model, lora):
    expected, before = model(TEXTS, "one"), model.encoder.add_lora("other", lora)
    alone = model(TEXTS, "other")
    reweigh(lora, renamed("base_model.model.", "base_model.model.some.bert."))
    assert model.encoder.add_lora("other", lora) == before
    np.testing.assert_array_equal(model(TEXTS, "other"), alone)
    np.testing.assert_array_equal(model(TEXTS, "one"), expected)
    model.encoder.remove_lora("other")


def test_a_pooler_that_is_not_read_is_left_out(model, lora):
    expected = model.encoder.add_lora("other", lora)
    name = "base_model.model.pooler.dense.lora_A.weight"
    reweigh(lora, with_one(name, 4, 64))
    assert model.encoder.add_lora("other", lora) == expected
    model.encoder.remove_lora("other")


def test_bytes_are_those_of_its_weights(model, lora):
    weights = load_file(lora / WEIGHTS)
    assert model.encoder.add_lora("other", lora) == sum(each.nbytes for each in weights.values())
    model.encoder.remove_lora("other")


def test_loaded_weights_are_independent_of_the_file(model, lora):
    model.encoder.add_lora("other", lora)
    expected = model(TEXTS, "other")
    (lora / WEIGHTS).write_bytes(bytes((lora / WEIGHTS).stat().st_size))
    np.testing.assert_array_equal(model(TEXTS, "other"), expected)
    model.encoder.remove_lora("other")


def test_layers_are_as_before_when_the_last_is_gone(tmp_path, minilm_directory):
    model = Encoding(save_bert(tmp_path, minilm_directory))
    base = model(TEXTS)
    for name, targets in (("one", TARGETS), ("other", ["query", "key"])):
        model.add(name, tmp_path / name, target_modules=targets)
    assert wrapped(model) == 10
    model.encoder.remove_lora("one")
    assert wrapped(model) == 4
    for name in ("other", "other", "never there"):
        model.encoder.remove_lora(name)
    assert wrapped(model) == 0
    np.testing.assert_array_equal(model(TEXTS), base)


def test_another_base_is_served_and_logged(model, lora, caplog):
    configure(lora, base_model_name_or_path="org/other")
    with caplog.at_level(logging.WARNING):
        model.encoder.add_lora("other", lora)
        assert [line for line in caplog.messages if "was made for 'org/other', but fits m: it is served" in line]
        caplog.clear()
        configure(lora, base_model_name_or_path="org/M")
        model.encoder.add_lora("other", lora)
        assert not caplog.messages
    model.encoder.remove_lora("other")


def test_the_number_of_adapter_names_must_match_the_items(model):
    with pytest.raises(ValueError, match=f"there are 1 LoRA adapters for {len(TEXTS)} items"):
        model(TEXTS, ["one"])


def test_a_layer_refuses_rows_that_belong_to_no_item(model):
    """An unknown layout of rows raises an error; it never falls back to the base."""
    (layer,) = [m for m in model.encoder.model.modules() if isinstance(m, Adapted) and "0.attention.self" in m.key]
    with torch.inference_mode(), model.encoder.adapted(["one"]):
        with pytest.raises(RuntimeError, match="the rows of its items are not known"):
            layer(torch.ones(1, 3, 64))
        with model.encoder.loras.over([3]):
            assert layer(torch.ones(1, 3, 64)).shape == (1, 3, 64)


def test_adapters_come_and_go_beside_forward_passes(model, lora):
    """No result changes while other adapters are added and removed."""
    names = ["", "one"]
    expected = {name: model(TEXTS, name) for name in names}
    reweigh(lora, renamed("query", "key"))
    done, num_passes = threading.Event(), dict.fromkeys(names, 0)

    def run(name):
        while not done.is_set():
            np.testing.assert_allclose(model(TEXTS, name), expected[name], atol=1e-6)
            num_passes[name] += 1

    with ThreadPoolExecutor(2) as pool:
        passes = [pool.submit(run, name) for name in names]
        try:
            for _ in range(25):
                model.encoder.add_lora("other", lora)
                model.encoder.remove_lora("other")
        finally:
            done.set()
        for each in passes:
            each.result()
    assert min(num_passes.values()) > 5


def test_patterns_are_those_of_peft(lora):
    configure(
        lora,
        r=4,
        lora_alpha=8,
        rank_pattern={"query": 2, r"layer.1.output.dense": 16},
        alpha_pattern={r"^encoder.layer\.0.*dense": 1.5},
        use_rslora=True,
    )
    files = LoraFiles.read(lora)
    names = ["encoder.layer.0.attention.self.query", "myquery", "encoder.layer.1.output.dense", "x.output.dense"]
    assert [files.rank_of(name) for name in names] == [2, 4, 16, 4]
    assert files.scale_of("encoder.layer.0.output.dense") == 1.5 / 2
    assert files.scale_of("encoder.layer.1.output.dense") == 8 / 4
