"""Small models with fixed-seed weights, as glirel saves them."""

import shutil
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file

from sie_triton.models.inputs.words import WORD
from tests.support.models import save_encoder, set_apart

# glirel imports one function of seqeval, for its training metrics. seqeval has no wheel, and no test trains.
SEQEVAL = ModuleType("seqeval.metrics.v1")
SEQEVAL._prf_divide = None
sys.modules.setdefault(SEQEVAL.__name__, SEQEVAL)

from glirel import GLiREL  # noqa: E402

LABELS = ("born in", "works for", "author", "größer als", "日")


def save_glirel(root: Path, tokenizer: Path, architecture: str = "bert", **config: Any) -> GLiREL:
    """`config` goes into glirel_config.json. Saved in root / "model", with what it needs of its encoder's repository.

    glirel saves a pickle, which stands in root / "pickled"; here the same weights are safetensors.
    """
    save_encoder(root / "base", tokenizer, architecture)
    settings = {
        "model_name": str(root / "base"),
        "fine_tune": True,
        "subtoken_pooling": "first",
        "hidden_size": 64,
        "scorer": "dot",
        "rel_mode": "marker",
        "span_marker_mode": "markerv1",
        "label_embed_strategy": "both",
        "refine_prompt": False,
        "refine_relation": False,
        "ffn_mul": 2,
        "dropout": 0.0,
        "max_width": 12,
        "max_len": 384,
        "max_entity_pair_distance": None,
        "fixed_relation_types": True,
        "device": "cpu",
        **config,
    }
    torch.manual_seed(8)
    model = GLiREL(Namespace(**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bert_layer" not in name:
                parameter.copy_(torch.randn_like(parameter) * 1.3 / parameter.shape[-1] ** 0.5)
    set_apart(model.token_rep_layer.bert_layer.model.get_input_embeddings())
    model.save_pretrained(root / "pickled")
    (root / "pickled/encoder").mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(root / "base" / name, root / "pickled/encoder" / name)
    shutil.copytree(root / "pickled", root / "model", ignore=shutil.ignore_patterns("*.bin"))
    save_file({name: each.contiguous() for name, each in model.state_dict().items()}, root / "model/model.safetensors")
    return model


def entities_of(text: str, every: int = 3, width: int = 2) -> list[dict[str, int]]:
    """Return some words of the text as entities, in a client's form."""
    words = [match.span() for match in WORD.finditer(text)]
    places = [words[i : i + width] for i in range(0, len(words), every)]
    return [{"start": each[0][0], "end": each[-1][1]} for each in places]


def asked(text: str, entities: list[dict[str, int]]) -> tuple[list[str], list[Any]]:
    """Words of `text`, and the first and last word of each entity, in glirel's form."""
    words = [match.span() for match in WORD.finditer(text)]
    ner = []
    for each in entities:
        own = [i for i, (start, end) in enumerate(words) if end > each["start"] and start < each["end"]]
        ner.append([own[0], own[-1], "thing"])
    return [text[start:end] for start, end in words], ner
