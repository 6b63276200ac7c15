"""Every architecture against the library's eager forward pass: token states and vectors, item by item.

`expected_path` is what the probe is known to find; it must notice what is broken.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    CamembertConfig,
    Data2VecTextConfig,
    EsmConfig,
    IBertConfig,
    LongformerConfig,
    LukeConfig,
    MPNetConfig,
    XLMRobertaConfig,
    XmodConfig,
)

from benchmarks.architectures import ARCHITECTURES, build, sharpen
from sie_triton.engines.torch import encoder as encoder_module
from sie_triton.engines.torch import probe as probe_module
from sie_triton.engines.torch.attention import packed
from sie_triton.engines.torch.attention.segments import Segments
from sie_triton.engines.torch.encoder import PACKED, PADDED, TorchEncoder, load_model
from sie_triton.engines.torch.probe import TOLERANCE, probe, probed, relative_error
from sie_triton.engines.torch.rows import placed
from sie_triton.errors import LoadError
from tests.support.parity import TO_ITSELF, TO_REFERENCE, assert_parity

PADDED_ONES = {"Gemma 2, capped scores", "MPNet", "T5 encoder", "BLOOM, causal"}
IN_BFLOAT16 = ("BERT", "ModernBERT, local and global", "Qwen3, causal", "Gemma 3, both ways, window", "T5 encoder")
MAX_ERROR = 1e-4
BFLOAT16 = 0.999

# Beyond every window; neighbours of equal and of similar length for the padded path.
LENGTHS = np.array([1, 1, 2, 7, 33, 35, 100, 150, 150], np.int32)
INPUT_IDS = np.random.default_rng(1).integers(8000, 20000, LENGTHS.sum(), dtype=np.int32)
# One of these is the padding of each architecture; an item begins with 0.
INPUT_IDS[2::5] = np.resize([0, 1, 2], len(INPUT_IDS[2::5]))
ITEMS = np.split(INPUT_IDS, np.cumsum(LENGTHS)[:-1])


@dataclass
class Subject:
    """A saved model, the library's results for the items, and the vector that pooling takes."""

    directory: object
    expected: list[torch.Tensor]
    last_token: bool

    def vectors(self, states: list[torch.Tensor]) -> np.ndarray:
        return np.stack([(s[-1] if self.last_token else s.mean(0)).float().numpy() for s in states])

    def load(self, dtype: torch.dtype = torch.float32) -> TorchEncoder:
        return TorchEncoder(load_model(self.directory, dtype, "cpu"))


def states_of(encoder: TorchEncoder, items=ITEMS) -> list[torch.Tensor]:
    lengths = np.array([len(item) for item in items], np.int32)
    return list(torch.split(encoder.hidden_states(np.concatenate(items), lengths), lengths.tolist()))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def subject(request, tmp_path_factory) -> Subject:
    return make_subject(request.param, tmp_path_factory.mktemp("architecture"))


def make_subject(architecture, directory) -> Subject:
    model = build(architecture)
    model.save_pretrained(directory)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = [model(input_ids=torch.tensor(item[None], dtype=torch.long)).last_hidden_state[0] for item in ITEMS]
    subject = Subject(directory, expected, "causal" in architecture)
    subject.path = PADDED if architecture in PADDED_ONES else PACKED
    return subject


def test_float32_equals_the_library(subject):
    encoder = subject.load()
    verdict = probe(encoder, 256)
    assert verdict.path == subject.path, verdict.reason
    for path in {verdict.path, PADDED}:
        encoder.use(path)
        together, alone = states_of(encoder), [states_of(encoder, [item])[0] for item in ITEMS]
        assert max(map(relative_error, together, subject.expected)) <= MAX_ERROR
        assert_parity(subject.vectors(together), subject.vectors(subject.expected), TO_REFERENCE)
        assert_parity(subject.vectors(together), subject.vectors(alone), TO_ITSELF)


@pytest.mark.parametrize("subject", IN_BFLOAT16, indirect=True)
def test_bfloat16_stays_close(subject):
    encoder = subject.load(torch.bfloat16)
    encoder.prepare()
    encoder.use(subject.path)
    assert_parity(subject.vectors(states_of(encoder)), subject.vectors(subject.expected), BFLOAT16)


def shifted(lengths, *_):
    return Segments.of((*lengths[:-2], lengths[-2] - 1, lengths[-1] + 1))


LEAKING = type("Broken", (), {"of": staticmethod(shifted)})
BROKEN = {
    "no window, causal": ("Mistral, causal, window", packed, "window_of", lambda *_: (-1, 0)),
    "no window, both ways": ("Gemma 3, both ways, window", packed, "window_of", lambda *_: (-1, -1)),
    "no local layers": ("ModernBERT, local and global", packed, "window_of", lambda *_: (-1, -1)),
    "no causal mask": ("Qwen3, causal", packed, "window_of", lambda *_: (-1, -1)),
    "one token leaks between items": ("BERT", encoder_module, "Segments", LEAKING),
}


@pytest.mark.parametrize("control", BROKEN)
def test_the_probe_notices_a_broken_variant(tmp_path, monkeypatch, control):
    architecture, module, name, broken = BROKEN[control]
    subject = make_subject(architecture, tmp_path)
    monkeypatch.setattr(module, name, broken)
    verdict = probe(subject.load(), 256)
    assert verdict.path == PADDED
    assert "differs from the library's eager attention" in verdict.reason
    assert verdict.error <= TOLERANCE[torch.float32]


# Architectures whose positions, or whose embeddings, depend on the ids of other tokens of the item.
BY_IDS = {
    "xlm-roberta": (XLMRobertaConfig, {}, PACKED),
    "camembert": (CamembertConfig, {"pad_token_id": 0}, PACKED),
    "xmod": (XmodConfig, {"languages": ["en_XX"], "default_language": "en_XX"}, PACKED),
    "data2vec": (Data2VecTextConfig, {}, PACKED),
    "esm": (EsmConfig, {"mask_token_id": 32}, PACKED),
    "esm, scaled by the number of masks": (EsmConfig, {"mask_token_id": 32, "token_dropout": True}, PADDED),
    "mpnet": (MPNetConfig, {}, PADDED),
    "longformer": (LongformerConfig, {"attention_window": 32}, PADDED),
    "ibert": (IBertConfig, {}, PADDED),
    "luke": (LukeConfig, {}, PADDED),
}
WITH_SPECIAL = [
    np.array(ids, np.int32)
    for ids in (
        [0, 500, 501, 1, 502, 1, 1, 503, 2],
        [1],
        [0, 500, 32, 501, 32, 2, 1, 1],
        [1, 1, 700, 701, 702],
        [600, 2, 601, 0, 602, 32, 1],
        [650] * 30 + [1, 32] * 10,
    )
]


def by_ids(name, **missing):
    kind, changes, _ = BY_IDS[name]
    usual = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "vocab_size": 1000, "hidden_size": 64}
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 300}
    torch.manual_seed(0)
    return sharpen(AutoModel.from_config(kind(**usual | sizes | changes | missing), attn_implementation="eager")).eval()


@torch.inference_mode()
def of_library(model, items=WITH_SPECIAL):
    ids = [torch.tensor(item[None], dtype=torch.long) for item in items]
    return [model(input_ids=each, attention_mask=torch.ones_like(each)).last_hidden_state[0] for each in ids]


@pytest.mark.parametrize("name", BY_IDS)
def test_special_tokens_in_a_text_have_the_library_s_positions(name):
    model = by_ids(name)
    expected = of_library(model)
    encoder = TorchEncoder(model)
    assert probe(encoder, 290).path == BY_IDS[name][2]
    for path in {BY_IDS[name][2], PADDED}:
        encoder.use(path)
        for items, wanted in [
            (WITH_SPECIAL, expected),
            *(([i], [e]) for i, e in zip(WITH_SPECIAL, expected, strict=True)),
        ]:
            assert max(map(relative_error, states_of(encoder, items), wanted)) <= MAX_ERROR


@pytest.mark.parametrize("name", ["xlm-roberta", "camembert", "data2vec", "longformer", "luke"])
def test_a_model_that_numbers_from_no_padding_token_is_refused(name):
    with pytest.raises(LoadError, match=r"^config\.json: pad_token_id is null") as refused:
        TorchEncoder(by_ids(name, pad_token_id=None))
    assert refused.value.reason == "corrupt"


def test_the_probe_notices_positions_that_ignore_ids(monkeypatch):
    monkeypatch.setattr(
        TorchEncoder, "positions", lambda self, _, lengths: placed(lengths)[1] + self.padding_position + 1
    )
    verdict = probe(TorchEncoder(by_ids("xlm-roberta")), 290)
    assert verdict.path == PADDED
    assert "differs from the library's eager attention" in verdict.reason


@pytest.mark.parametrize("architecture", ["BERT", "Mistral, causal, window"])
def test_the_probe_reads_the_longest_text_where_that_is_short_work(tmp_path, monkeypatch, architecture):
    encoder = make_subject(architecture, tmp_path).load()
    assert max(map(len, probed(encoder, 512))) == 512
    monkeypatch.setattr(probe_module, "MOST_PRODUCTS", encoder.num_weights * 100)
    assert max(map(len, probed(encoder, 512))) == (129 if "window" in architecture else 100)


def test_a_mask_of_its_own_or_an_unknown_argument_is_refused():
    module, x = torch.nn.Identity(), torch.zeros(1, 1, 2, 16)
    with pytest.raises(packed.CannotPack, match="a mask of its own"):
        packed.packed_attention(module, x, x, x, torch.zeros(1, 1, 2, 2))
    with pytest.raises(packed.CannotPack, match="s_aux, softcap"):
        packed.packed_attention(module, x, x, x, None, softcap=50.0, s_aux=x, use_cache=False)
