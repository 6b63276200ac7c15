"""int8 is accepted by what a model answers: vectors, sparse weights, scores, entities, classes and relations."""

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from sie_triton.contract.spec import Runtime
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch import cpu_kernels
from sie_triton.engines.torch.int8 import MIN_COSINE
from sie_triton.errors import LoadError
from sie_triton.models import families
from sie_triton.models.catalog import recognise
from sie_triton.models.families.answers import difference, sampled
from tests.support.gliclasses import save_gliclass
from tests.support.gliner2s import save_gliner2
from tests.support.gliners import save_gliner
from tests.support.glirels import save_glirel
from tests.support.loading import load_adapter
from tests.support.models import save_bert, save_bge_m3, save_cross_encoder, save_pylate, save_splade

pytestmark = pytest.mark.skipif(not cpu_kernels.has_int8(), reason="this processor or this machine has no 8-bit kernel")


def save_sparse(root, tokenizer):
    """Save a SPLADE whose vectors have about as few terms as those of a trained one: each term costs time."""
    [path] = save_splade(root, tokenizer).rglob("model.safetensors")
    weights = load_file(path)
    weights["cls.predictions.bias"] -= 1.0
    save_file(weights, path, {"format": "pt"})


SAVED = {
    "sentence_transformer": save_bert,
    "splade": save_sparse,
    "multivector": save_pylate,
    "bge_m3": save_bge_m3,
    "cross_encoder": save_cross_encoder,
    "gliner": save_gliner,
    "gliner2": save_gliner2,
    "gliclass": save_gliclass,
    "glirel": save_glirel,
}


def loaded(root, precision, measurements=None):
    directory = root / "model" if (root / "model").is_dir() else root
    of = recognise(directory, "m", {"weights_path": str(directory)}).resolve(Runtime(precision=precision))
    return of, load_adapter(of, directory, measurements)


@pytest.mark.parametrize("family", SAVED)
def test_a_family_runs_in_8_bits_and_answers_the_same(tmp_path, minilm_directory, family):
    SAVED[family](tmp_path, minilm_directory)
    measurements = Measurements()
    of, rounded = loaded(tmp_path, "int8", measurements)
    assert (of.family, measurements.get("int8_answers")) == (family, "")
    _, exact = loaded(tmp_path, "float32")
    assert rounded.weights_bytes < exact.weights_bytes
    model = families.model_of(of)
    batch = sampled(model, families.family(family), exact)
    before, after = exact.forward(batch), rounded.forward(batch)
    assert difference(model, before, after) == ""
    changed = [
        name for name, rows in before.items() if rows.dtype == np.float32 and not np.array_equal(rows, after[name])
    ]
    assert changed
    for name in changed:
        assert difference(model, before, before | {name: -10 * before[name]}).startswith(name)


@pytest.mark.parametrize("architecture", ["bert", "electra", "distilbert", "qwen3"])
def test_a_cross_encoder_whose_scores_change_is_refused_though_its_states_hardly_do(
    tmp_path, minilm_directory, monkeypatch, architecture
):
    directory = save_cross_encoder(tmp_path, minilm_directory, architecture)
    [path] = directory.glob("*.safetensors")
    weights = load_file(path)
    large = {name: 3 * each if each.ndim == 2 and "embed" not in name else each for name, each in weights.items()}
    save_file(large, path, {"format": "pt"})
    measurements = Measurements()
    with pytest.raises(LoadError, match=r"^int8 changes this model's results: scores: .*; write") as told:
        loaded(tmp_path, "int8", measurements)
    assert told.value.reason == "unsupported"
    assert measurements.get("probe_int8") > MIN_COSINE
    monkeypatch.setattr(families, "difference", lambda *_: pytest.fail("compared again"))
    with pytest.raises(LoadError, match="int8 changes this model's results"):
        loaded(tmp_path, "int8", measurements)
    loaded(tmp_path, "float32", measurements)
