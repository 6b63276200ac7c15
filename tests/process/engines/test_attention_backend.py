"""SIE_ATTENTION_BACKEND holds for every part of a model that PyTorch computes, or the load is refused by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from benchmarks.architectures import build
from sie_triton.contract.spec import Runtime
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.attention import kernels
from sie_triton.engines.torch.attention.library import library_attention
from sie_triton.engines.torch.encoder import PACKED, PADDED, TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.probe import choose_path
from sie_triton.errors import LoadError
from sie_triton.pipeline.worker.__main__ import sampler_of
from tests.support import ocr
from tests.support.detectors import Finder, save_dino, save_owl
from tests.support.items import Served
from tests.support.readers import Reader, save_donut, save_florence2
from tests.support.stages import spec
from tests.support.towers import save_clap, save_clip, save_naflex, save_siglip

pytestmark = pytest.mark.usefixtures("conversations_written_here")


class Calls(TorchFunctionMode):
    """Counts the calls of PyTorch's SDPA in its context, whoever makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def on(backend: str) -> Any:
    return {"runtime": Runtime(attention_backend=backend)}


# Each family with parts that run with transformers' own code: how a tiny model is saved and opened, and the class that
# refuses SDPA, if one does.
FAMILIES: dict[str, tuple[Any, Any, str]] = {
    "clip": (save_clip, lambda d, c: Served("clip", d, dims={"dense": 32}, **c), ""),
    "siglip": (save_siglip, lambda d, c: Served("siglip", d, dims={"dense": 48}, **c), ""),
    "siglip2": (lambda d, t: save_naflex(d), lambda d, c: Served("siglip", d, dims={"dense": 48}, **c), ""),
    "clap": (
        save_clap,
        lambda d, c: Served("clap", d, inputs=("text", "audio"), dims={"dense": 32}, **c),
        "ClapAudioModel",
    ),
    "owlv2": (save_owl, lambda d, c: Finder("owlv2", d, **c), ""),
    "grounding_dino": (save_dino, lambda d, c: Finder("grounding_dino", d, **c), "GroundingDinoForObjectDetection"),
    "donut": (save_donut, lambda d, c: Reader("donut", d, **c), "DonutSwinModel"),
    "florence2": (save_florence2, lambda d, c: Reader("florence2", d, **c), ""),
    **{name: (save, lambda d, c, name=name: Reader(name, d, **c), "") for name, save in ocr.SAVE.items()},
}


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory, minilm_directory):
    directory = tmp_path_factory.mktemp(request.param)
    save, open_, refusing = FAMILIES[request.param]
    save(directory, minilm_directory)
    return lambda backend: open_(directory, on(backend)), refusing


def computed(served: Any) -> tuple[dict[str, Any], int]:
    """Return the rows of a typical batch, and the number of calls of SDPA."""
    batch = sampler_of(served.spec, served.adapter).batch(64)
    with Calls() as calls:
        rows = served.adapter.forward(batch)
    return rows, calls.count


def test_eager_and_sdpa_hold_or_are_refused_by_name(case):
    opened, refusing = case
    eager, num_calls = computed(opened("eager"))
    assert num_calls == 0
    if refusing:
        with pytest.raises(LoadError, match=rf"^SIE_ATTENTION_BACKEND=sdpa cannot be used for {refusing}, a") as caught:
            opened("sdpa")
        assert caught.value.reason == "unsupported"
        return
    sdpa, num_calls = computed(opened("sdpa"))
    assert num_calls > 1
    for key, values in eager.items():
        assert np.allclose(values, sdpa[key], atol=1e-3), key


def test_a_kernel_of_packed_rows_is_refused_by_parts_that_are_not_packed(case, monkeypatch):
    opened, _ = case
    monkeypatch.setattr(kernels, "reason_unusable", lambda *_: None)
    with pytest.raises(
        LoadError, match=r"^SIE_ATTENTION_BACKEND=native cannot be used for \w+, a part of this model: "
    ):
        opened("native")


LENGTHS = np.array([3, 3, 5], np.int32)
IDS = np.arange(100, 100 + LENGTHS.sum(), dtype=np.int32)


def settled(architecture: str, backend: str) -> tuple[TorchEncoder, int]:
    """Return an encoder on the path that its probe chooses, and the number of SDPA's calls of a pass there."""
    encoder = TorchEncoder(build(architecture), backend)
    choose_path(encoder, 128, Measurements())
    with Calls() as calls:
        encoder.hidden_states(IDS, LENGTHS)
    return encoder, calls.count


@pytest.mark.parametrize("architecture", ["BERT", "T5 encoder"])
def test_encoders_hold_eager_and_sdpa_on_the_path_that_fits_them(architecture):
    path = PADDED if architecture == "T5 encoder" else PACKED
    eager, none = settled(architecture, "eager")
    sdpa, some = settled(architecture, "sdpa")
    assert (eager.path, sdpa.path) == (path, path)
    assert none == 0
    assert some > 0


@pytest.mark.parametrize(
    ("architecture", "backend", "refusing"),
    [
        ("MPNet", "sdpa", "MPNetModel"),
        ("DeBERTa v2", "sdpa", "DebertaV2Model"),
        ("DeBERTa v2", "native", "DebertaV2Model"),
        ("T5 encoder", "native", "T5EncoderModel"),
    ],
)
def test_encoders_refuse_by_name_what_they_cannot_hold(architecture, backend, refusing):
    with pytest.raises(LoadError, match=f"^SIE_ATTENTION_BACKEND={backend} cannot be used for {refusing}") as caught:
        settled(architecture, backend)
    assert caught.value.reason == "unsupported"


@pytest.mark.parametrize("architecture", ["MPNet", "DeBERTa v2"])
def test_eager_holds_where_transformers_has_nothing_else(architecture):
    assert settled(architecture, "eager")[1] == 0
    assert settled(architecture, "auto")[1] == 0


def test_a_kernel_of_packed_rows_leaves_no_padded_path_to_choose(monkeypatch):
    """Calibration may otherwise prefer the padded path, which has no such kernel."""
    assert settled("BERT", "native")[0].paths == (PACKED,)
    assert settled("BERT", "sdpa")[0].paths == (PACKED, PADDED)


def test_flash_attention_is_that_of_transformers_where_the_machine_and_the_model_have_it(monkeypatch):
    bert, t5 = build("BERT"), build("T5 encoder")
    assert library_attention(bert, "flash_attention_2") == "sdpa"  # there is no GPU
    monkeypatch.setattr(kernels, "reason_unusable", lambda *_: None)
    assert library_attention(bert, "flash_attention_2") == "flash_attention_2"
    with pytest.raises(LoadError, match=r"^SIE_ATTENTION_BACKEND=flash_attention_2 cannot be used for T5EncoderModel"):
        library_attention(t5, "flash_attention_2")


def test_a_backend_that_is_asked_for_is_not_replaced_by_a_graph():
    """A graph has attention of its own."""
    engines = {}
    for backend in ("auto", "eager"):
        of = replace(spec(), runtime=Runtime(attention_backend=backend))
        engines[backend] = TorchEngine(of, "cpu", Measurements())
        engines[backend].settle(engines[backend].encoder(build("BERT")), max_length=128)
    assert {backend: len(engine.may_have_graphs()) for backend, engine in engines.items()} == {"auto": 1, "eager": 0}
