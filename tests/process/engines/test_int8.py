"""Linear layers in 8 bits: the kernel beside the same arithmetic in float64, and encoders beside float32."""

import ctypes

import numpy as np
import pytest
import torch

from sie_triton.contract.spec import Runtime
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch import cpu_kernels as kernels
from sie_triton.engines.torch import engine as engine_module
from sie_triton.engines.torch import int8, precision
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.int8 import Int8Linear
from sie_triton.engines.torch.precision import INT8
from sie_triton.errors import LoadError
from sie_triton.system.native.builds import KERNELS, VECTORS, compile_build
from tests.support.attention import formula
from tests.support.loras import least_cosine, save_lora
from tests.support.models import CONFIGS, save_encoder, small_bert
from tests.support.stages import spec

needs_vnni = pytest.mark.skipif(not kernels.has_int8(), reason="this processor or this machine has no 8-bit kernel")

LENGTHS = np.array([1, 7, 40, 90, 128], np.int32)


def linear(num_in, num_out, seed=0):
    torch.manual_seed(seed)
    return torch.randn(num_out, num_in) * 0.05, torch.randn(num_out)


def computed(x, weight, bias=None, *, has_gelu=False):
    return kernels.int8_linear(x, kernels.int8_panels(weight), bias, has_gelu=has_gelu)


def by_definition(x, weight, bias=None, *, has_gelu=False):
    scale = weight.abs().amax(1, keepdim=True) / 127
    x, rounded = x.double(), torch.round(weight / scale).double()
    low = x.amin(-1, keepdim=True)
    step = (x.amax(-1, keepdim=True) - low) / 255
    y = (low + step * torch.round((x - low) / step)) @ (scale * rounded).T
    y = y if bias is None else y + bias
    return torch.nn.functional.gelu(y) if has_gelu else y


def unambiguous(num_rows, width):
    """Return numbers [num_rows, width] that lie between no two integers once they are divided by their row's step."""
    levels = torch.randint(0, 256, (num_rows, width)) + 0.8 * torch.rand(num_rows, width) - 0.4
    levels[:, 0], levels[:, -1] = 0, 255
    return torch.randn(num_rows, 1) + torch.rand(num_rows, 1) / 10 * levels.clamp(0, 255)


@needs_vnni
@pytest.mark.parametrize("has_gelu", [False, True])
@pytest.mark.parametrize("shape", [(16, 64), (384, 1536), (1536, 384)])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 95, 96, 203])
def test_the_kernel_computes_its_definition(num_rows, shape, has_gelu):
    weight, bias = linear(*shape)
    x = unambiguous(num_rows, shape[0])
    for added in (bias, None):
        found = computed(x, weight, added, has_gelu=has_gelu).double()
        torch.testing.assert_close(found, by_definition(x, weight, added, has_gelu=has_gelu), atol=2e-5, rtol=2e-5)


@needs_vnni
def test_a_row_depends_on_no_other_row_and_on_no_number_of_threads(monkeypatch):
    weight, bias = linear(384, 384)
    x = torch.randn(2, 100, 384)
    together = computed(x, weight, bias)
    assert together.shape == (2, 100, 384)
    alone = torch.stack([torch.cat([computed(row[None], weight, bias) for row in each]) for each in x])
    assert torch.equal(together, alone)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(together, computed(x, weight, bias))


@needs_vnni
def test_equal_numbers_and_channels_of_zeros_are_exact():
    weight, bias = linear(32, 64)
    weight[5] = 0
    x = torch.full((3, 32), 0.7)
    found = computed(x, weight, bias)
    assert torch.equal(found[:, 5], bias[5].expand(3))
    rounded = torch.round(weight / weight.abs().amax(1, keepdim=True).clamp_min(1e-30) * 127)
    expected = 0.7 * (rounded * weight.abs().amax(1, keepdim=True) / 127).sum(1) + bias
    torch.testing.assert_close(found, expected.expand(3, 64))


@needs_vnni
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_gives_nan_and_spoils_no_other(number):
    weight, bias = linear(64, 64)
    x = torch.randn(3, 64)
    expected = computed(x, weight, bias)
    x[1, 37] = number
    found = computed(x, weight, bias)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


def settled(directory, measurements=None, name=INT8, max_length=128):
    """Return an encoder as a worker loads it, and its engine."""
    of = spec(max_sequence_length=max_length, runtime=Runtime(precision=name))
    engine = TorchEngine(of, "cpu", measurements or Measurements())
    encoder = engine.encoder(engine.load(directory))
    engine.settle(encoder)
    engine.round_weights(dict, lambda *_: "")
    return encoder, engine


def ids(encoder, lengths=LENGTHS, seed=0):
    return np.random.default_rng(seed).integers(1, encoder.vocab_size, lengths.sum(), dtype=np.int32)


def vectors(encoder, lengths=LENGTHS):
    states = torch.split(encoder.hidden_states(ids(encoder, lengths), lengths), lengths.tolist())
    return torch.stack([each.mean(0) for each in states]).numpy()


@needs_vnni
def test_minilm_in_8_bits_stays_close_to_float32(minilm_directory):
    encoder, engine = settled(minilm_directory)
    in_float32, other = settled(minilm_directory, name="float32")
    assert sum(isinstance(layer, Int8Linear) for layer in encoder.model.modules()) == 36
    assert 0.99 < least_cosine(vectors(encoder), vectors(in_float32)) < 0.99999
    assert encoder.weights_bytes == in_float32.weights_bytes - 3 * 6 * 384 * (4 * 384 + 2 * 1536)
    assert engine.may_have_graphs() == {}
    assert not any(isinstance(layer, Int8Linear) for layer in in_float32.model.modules())
    del other


@needs_vnni
@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_architecture_runs_in_8_bits(tmp_path, minilm_directory, architecture):
    save_encoder(tmp_path, minilm_directory, architecture)
    encoder, _ = settled(tmp_path)
    in_float32, _ = settled(tmp_path, name="float32")
    has_linear_layers = architecture != "gpt2"  # which has layers of its own for the same product
    assert any(isinstance(layer, Int8Linear) for layer in encoder.model.modules()) == has_linear_layers
    assert least_cosine(vectors(encoder), vectors(in_float32)) > int8.MIN_COSINE


@needs_vnni
def test_an_adapter_changes_the_layers_in_8_bits_too(tmp_path, minilm_directory):
    model = save_encoder(tmp_path / "base", minilm_directory, "bert")
    save_lora(tmp_path / "lora", model, spread=0.1)
    found = []
    for name in (INT8, "float32"):
        encoder, _ = settled(tmp_path / "base", name=name)
        encoder.add_lora("a", tmp_path / "lora")
        with encoder.adapted(["a"] * len(LENGTHS)):
            found.append(vectors(encoder))
    assert least_cosine(*found) > int8.MIN_COSINE
    assert least_cosine(found[1], vectors(encoder)) < int8.MIN_COSINE


@pytest.fixture
def with_outliers(tmp_path):
    """A model whose first layer's states have one channel far larger than all others, which the next layers ignore."""
    model = small_bert(64, 128)
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.intermediate.dense.weight.mul_(20)
            layer.intermediate.dense.weight[0] = 0
            layer.intermediate.dense.bias[0] = 1e4
            layer.output.dense.weight.mul_(20)
            layer.output.dense.weight[:, 0] = 0
    model.save_pretrained(tmp_path)
    return tmp_path


@needs_vnni
def test_a_model_that_8_bits_change_is_refused_also_by_a_later_process(with_outliers):
    measurements = Measurements()
    for _ in range(2):
        with pytest.raises(
            LoadError, match=r"token states, a cosine of -?0\.\d+, below 0\.98; write compute_precision"
        ):
            settled(with_outliers, measurements)
    settled(with_outliers, name="float32")


@needs_vnni
def test_a_model_is_compared_once(minilm_directory, monkeypatch):
    measurements = Measurements()
    settled(minilm_directory, measurements)
    monkeypatch.setattr(int8, "_vectors", lambda *_: pytest.fail("compared again"))
    encoder, _ = settled(minilm_directory, measurements)
    assert any(isinstance(layer, Int8Linear) for layer in encoder.model.modules())


@needs_vnni
def test_a_model_that_reads_few_tokens_is_compared_with_few(tmp_path):
    small_bert(64, 128, max_position_embeddings=16).save_pretrained(tmp_path)
    encoder, _ = settled(tmp_path, max_length=16)
    assert any(isinstance(layer, Int8Linear) for layer in encoder.model.modules())


def test_layers_of_other_widths_stay_in_float32(tmp_path, monkeypatch, caplog):
    small_bert(24, 40).save_pretrained(tmp_path)
    monkeypatch.setattr(engine_module, "computes_int8", lambda *_: True)
    monkeypatch.setattr(precision, "has_int8", lambda: True)
    encoder, _ = settled(tmp_path)
    assert "int8 was requested, but this encoder has no linear layer that supports it: using float32" in caplog.text
    assert encoder.dtype is torch.float32


def test_kernels_compiled_for_avx2_have_no_8_bits_and_compute_the_rest(tmp_path, monkeypatch):
    assert compile_build(KERNELS, VECTORS[-1], tmp_path / "kernels.so")
    monkeypatch.setattr(kernels, "_library", lambda: kernels._bind(ctypes.CDLL(str(tmp_path / "kernels.so"))))
    assert not kernels.has_int8()
    x = torch.randn(1, 2, 40, 32)
    found = kernels.attention(x, x, x, (13, 27), (13, 27), 0.2, (-1, -1))
    torch.testing.assert_close(found.double(), formula(x, x, x, (13, 27), 0.2, (-1, -1)), atol=2e-5, rtol=0)


def test_without_a_kernel_another_format_is_used(minilm_directory, monkeypatch):
    monkeypatch.setattr(precision, "has_int8", lambda: False)
    monkeypatch.setattr(precision, "computes_bfloat16", lambda: False)
    encoder, engine = settled(minilm_directory)
    assert not engine.has_int8
    assert not any(isinstance(layer, Int8Linear) for layer in encoder.model.modules())
