"""Small models with fixed-seed weights, as gliner saves them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gliner import GLiNER

from benchmarks.texts import texts
from tests.support.extraction import Extractor
from tests.support.models import CONFIGS, save_tokenizer, set_apart

LABELS = ("person", "place of birth", "date", "organization", "größe", "日")

TEXTS = [
    "Ada Lovelace was born in London in 1815.",
    "naïve 😀 日本語 — größe e-mail_adress; [x]",
    "one",
    *texts(12, seed=3),
]


# So that scores are not all about 0.5, and not all 1: what comes out of an LSTM is smaller.
SCALE = {True: 3, False: 2}


def told(found):
    return [(each["start"], each["end"], each["label"], each["text"]) for each in found]


def assert_same(ours, theirs):
    """Check that entities equal `theirs`, in gliner's form."""
    assert told(ours["entities"]) == told(theirs)
    assert [each["score"] for each in ours["entities"]] == pytest.approx([each["score"] for each in theirs], abs=1e-4)


def num_compared(ours: Extractor, library: GLiNER, several: Sequence[Mapping[str, Any]]) -> int:
    """Compare the entities of TEXTS under each of the options, together and one text at a time; return their number."""
    num_found = 0
    for options in several:
        expected = library.inference(TEXTS, list(LABELS), **{"flat_ner": True, "multi_label": False, **options})
        together = ours(TEXTS, LABELS, **options)
        for text, found, theirs in zip(TEXTS, together, expected, strict=True):
            assert_same(found, theirs)
            assert_same(ours([text], LABELS, **options)[0], theirs)
            num_found += len(theirs)
    return num_found


def save_gliner(
    root: Path, tokenizer: Path, architecture: str = "bert", kind: str = "span", *, seed: int = 5, **config: Any
) -> GLiNER:
    """`kind`: span or token; `config` goes into gliner_config.json. Saved in root / "model"."""
    torch.manual_seed(seed)
    save_tokenizer(root / "tokenizer", tokenizer)
    settings = {
        "model_name": str(root / "tokenizer"),
        "hidden_size": 64,
        "dropout": 0.0,
        "encoder_config": CONFIGS[architecture].to_dict(),
        "span_mode": {"span": "markerV0", "token": "token_level"}[kind],
        "max_width": 5,
        **config,
    }
    model = GLiNER.from_config(settings, backbone_from_pretrained=False)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if not {"bert_layer", "labels_encoder"} & set(name.split(".")) and parameter.ndim > 1:
                parameter *= SCALE[bool(settings.get("num_rnn_layers", 1))]
    set_apart(model.model.token_rep_layer.get_input_embeddings())
    model.eval()
    model.save_pretrained(root / "model", safe_serialization=True)
    return model


def save_gliner_bi(
    root: Path, tokenizer: Path, architecture: str = "bert", labels: str = "bert", kind: str = "span", **config: Any
) -> GLiNER:
    """The same with an encoder of its own for labels."""
    save_tokenizer(root / "labels", tokenizer)
    own = {"labels_encoder": str(root / "labels"), "labels_encoder_config": CONFIGS[labels].to_dict()}
    return save_gliner(root, tokenizer, architecture, kind, seed=6, **own, **config)
