"""Heads of classifiers give what the whole model gives for each item alone, whatever tokens stand in it."""

import copy

import numpy as np
import pytest
import torch
import transformers

from benchmarks.architectures import sharpen
from sie_triton.engines.base import Overflow
from sie_triton.engines.torch import heads
from sie_triton.engines.torch.heads import DecoderHead, SequenceHead, TokenHead
from sie_triton.engines.torch.prepack import can_prepack
from sie_triton.errors import LoadError

SIZES = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 300,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "num_labels": 3,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
HALVES = ("encoder", "decoder")
SEQ2SEQ = {
    "d_model": 64,
    **{f"{half}_layers": 2 for half in HALVES},
    **{f"{half}_attention_heads": 4 for half in HALVES},
    **{f"{half}_ffn_dim": 128 for half in HALVES},
}
DECODERS = {
    "Qwen3": GROUPED,
    "Qwen2": {"num_key_value_heads": 2},
    "Llama": GROUPED,
    "Mistral": GROUPED,
    "Gemma": GROUPED,
    "Gemma3Text": GROUPED,
    "Phi3": {},
    "GPT2": {},
    "GPTNeoX": {},
    "OPT": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "Falcon": {},
}
OTHERS = {"Bert": ("first", {}), "XLMRoberta": ("first", {}), "ModernBert": ("mean", {"classifier_pooling": "mean"})}

# Padding at the end, at the start, alone and within; closing tokens within; one token.
ITEMS = [[500, 501, 502, 1, 1], [1, 1, 600], [1], [1, 1, 1], [7, 1, 800, 2], [700, 2, 2, 701, 1], [650], [2, 651, 2]]


def built(name, task="SequenceClassification", **changes):
    """A model of the architecture, and a copy for reference."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | changes)
    config._attn_implementation = "eager"
    model = sharpen(getattr(transformers, f"{name}For{task}")(config)).eval()
    return model, copy.deepcopy(model)


@torch.inference_mode()
def logits_of(head, model, items):
    """Logits by the head and by the whole model, [items, labels] each."""
    expected, hidden = [], []
    for item in items:
        inputs = {"input_ids": torch.tensor([item]), "attention_mask": torch.ones(1, len(item), dtype=torch.long)}
        expected.append(model(**inputs).logits)
        hidden.append(head.encoder(**inputs)[0][0])
    ids, lengths = np.concatenate(items).astype(np.int32), np.array([*map(len, items)], np.int32)
    return head(torch.cat(hidden), head.places(ids, lengths)), torch.cat(expected)


@pytest.mark.parametrize("padding", [1, None])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_reads_the_last_token_that_is_no_padding(name, padding):
    model, reference = built(name, **DECODERS[name] | {"pad_token_id": padding})
    head = SequenceHead(model)
    assert head._representative == ("last" if padding is None else "last but padding")
    torch.testing.assert_close(*logits_of(head, reference, ITEMS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_heads_do_not_depend_on_padding(name):
    reads, changes = OTHERS[name]
    model, reference = built(name, **changes)
    head = SequenceHead(model)
    assert head._representative == reads
    torch.testing.assert_close(*logits_of(head, reference, ITEMS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["Bart", "MBart", "PLBart"])
def test_an_encoder_decoder_reads_the_last_closing_token(name):
    model, reference = built(name, **SEQ2SEQ)
    items = [item for item in ITEMS if 2 in item]
    torch.testing.assert_close(*logits_of(DecoderHead(model), reference, items), atol=1e-5, rtol=1e-5)


def test_the_comparison_refuses_a_head_that_takes_padding_for_the_last_token(monkeypatch):
    monkeypatch.delitem(heads.REPRESENTATIVES, "last but padding")
    with pytest.raises(LoadError, match=r"^Qwen3ForSequenceClassification: its head reads neither") as refused:
        SequenceHead(built("Qwen3", **GROUPED)[0])
    assert refused.value.reason == "unsupported"


def test_the_comparison_refuses_an_encoder_decoder_of_which_the_last_token_is_read(monkeypatch):
    monkeypatch.setattr(DecoderHead, "places", lambda _, __, lengths: heads.last(lengths))
    with pytest.raises(LoadError, match=r"^BartForSequenceClassification: its head does not read"):
        DecoderHead(built("Bart", **SEQ2SEQ)[0])


def test_a_model_with_which_transformers_fails_is_refused():
    with pytest.raises(LoadError, match="transformers cannot compute this model") as refused:
        SequenceHead(built("XLMRoberta", pad_token_id=None)[0])
    assert refused.value.reason == "unsupported"


# Some read weights of the encoder, or pass on more of its output than states.
OF_TOKENS = {
    "Bert": ("MaskedLM", {}),
    "DebertaV2": ("MaskedLM", {"legacy": False, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "Longformer": ("MaskedLM", {"attention_window": [16, 16]}),
    "Qwen2Moe": ("CausalLM", {"num_experts": 4, "num_key_value_heads": 2, "moe_intermediate_size": 32}),
    "XLMRoberta": ("TokenClassification", {}),
}


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_head_of_tokens_gives_the_logits_of_the_whole_model(name):
    task, changes = OF_TOKENS[name]
    model, reference = built(name, task, **changes)
    head = TokenHead(model)
    head.prepare()
    samples = heads.computed(reference, [np.array(item) for item in ITEMS])
    torch.testing.assert_close(head(samples.hidden), samples.logits, atol=1e-4, rtol=1e-4)


def test_a_head_that_reads_more_than_states_is_refused():
    with pytest.raises(LoadError, match=r"^OPTForCausalLM: its head") as refused:
        TokenHead(built("OPT", "CausalLM", **DECODERS["OPT"])[0])
    assert refused.value.reason == "unsupported"


def test_a_head_whose_weights_cannot_be_laid_out_is_refused():
    """MobileBERT's reads the weights of a layer by itself."""
    head = TokenHead(built("MobileBert", "MaskedLM", embedding_size=32)[0])
    if not can_prepack(next(head.model.parameters())):
        pytest.skip("PyTorch lays out no weights here")
    with pytest.raises(LoadError) as refused:
        head.prepare()
    assert refused.value.reason == "unsupported"


@pytest.mark.parametrize(("head", "task"), [(SequenceHead, "SequenceClassification"), (TokenHead, "MaskedLM")])
def test_numbers_beyond_float16_are_not_the_heads_fault(head, task):
    model, _ = built("Bert", task)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight.mul_(1e8)
    with pytest.raises(Overflow):
        head(model.half())
