"""Files that open_clip saves, in the terms of transformers: CLIP with its own image tower, SigLIP with timm's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields, has_file, read_fields, shortened
from sie_triton.checkpoints.image_processor import ImagePlan, three
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.processor_classes import BICUBIC, BILINEAR, CLIP_MEAN, CLIP_STD
from sie_triton.checkpoints.resizing import EXACT, SHORTEST, Resizing
from sie_triton.errors import LoadError

CONFIG = "open_clip_config.json"

CLIP, SIGLIP = "clip", "siglip"

# Names of timm's SigLIP vision transformers. Sizes: width, layers, heads, width of the feed-forward network.
TIMM = re.compile(r"vit_(base|large|so400m|giantopt)_patch(\d+)_siglip_(\d+)")
TIMM_SIZES = {
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
    "so400m": (1152, 27, 16, 4304),
    "giantopt": (1536, 40, 16, 6144),
}
# Those with the tanh approximation of GELU.
TIMM_TANH = ("base_patch32", "large_patch16_siglip_512", "so400m_patch16", "giantopt")

# Supported keys of each tower, some with certain values only. Other keys must be null or false.
OF_BOTH = ("layers", "width", "mlp_ratio", "norm_kwargs", "act_kwargs", "output_tokens", "block_type")
OF_VISION = (*OF_BOTH, "image_size", "patch_size", "head_width", "pos_embed_type", "final_ln_after_pool")
OF_TIMM = ("image_size", "timm_model_name", "timm_model_pretrained", "timm_drop", "timm_drop_path")
OF_TEXT = (*OF_BOTH, "context_length", "vocab_size", "heads", "pad_id", "eos_id", "tokenizer_kwargs")
ONLY: Mapping[str, Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    CLIP: {
        "vision_cfg": {"pool_type": ("tok",), "block_type": (None, "default")},
        "text_cfg": {"pool_type": ("argmax",), "proj_type": ("linear",), "block_type": (None, "default")},
    },
    SIGLIP: {
        "vision_cfg": {"timm_pool": ("map",), "timm_proj": ("none", "")},
        "text_cfg": {
            "pool_type": ("last",),
            "proj_type": ("linear",),
            "no_causal_mask": (True,),
            "proj_bias": (True,),
            "block_type": (None, "default"),
        },
    },
}

# Ways in which open_clip's tokenizers clean texts.
CLEANING = ("whitespace", "lower", "canonicalize")


@dataclass(frozen=True, slots=True)
class OpenClipFiles:
    """Files of an open_clip model."""

    directory: Path
    kind: str
    config: Fields  # the config.json that transformers would have saved
    plan: ImagePlan
    cleaning: str  # of texts: one of CLEANING

    @classmethod
    def read(cls, directory: Path) -> "OpenClipFiles":
        """Read the files; raise LoadError naming what cannot be served."""
        found = read_fields(directory / CONFIG)
        model = found.fields("model_cfg")
        vision, text = model.fields("vision_cfg"), model.fields("text_cfg")
        kind = SIGLIP if vision.has("timm_model_name") else CLIP
        _check(kind, model, vision, text)
        width = model.integer("embed_dim", least=1, most=LIMITS.max_width)
        towers = {
            "vision_config": _timm(vision) if kind == SIGLIP else _vision(vision, model.flag("quick_gelu", False)),
            "text_config": _text(kind, text, width, model.flag("quick_gelu", False)),
        }
        side = towers["vision_config"]["image_size"]
        config = Fields(model.where, {"model_type": kind, "projection_dim": width, **towers})
        usual = "whitespace" if text.has("hf_tokenizer_name") else "lower"
        cleaning = text.fields("tokenizer_kwargs").text("clean", usual)
        if cleaning not in CLEANING:
            raise _unserved(text.fields("tokenizer_kwargs"), "clean", f"supported are {', '.join(CLEANING)}")
        return cls(directory, kind, config, _plan(found.fields("preprocess_cfg"), side), cleaning)


def is_open_clip(directory: Path) -> bool:
    """Return True to read open_clip's files: those of transformers are missing, or need the model's own code."""
    if not has_file(directory / CONFIG):
        return False
    return read_fields(directory / "config.json", required=False).has("auto_map") or not has_file(
        directory / "config.json"
    )


def _check(kind: str, model: Fields, vision: Fields, text: Fields) -> None:
    """Raise LoadError naming the first setting that neither CLIP nor SigLIP of transformers supports."""
    for part in ("multimodal_cfg", "audio_cfg"):
        if model.has(part):
            raise _unserved(model, part, "CoCa and similar models have more than two towers")
    if text.has("hf_model_name"):
        raise _unserved(text, "hf_model_name", "the text tower is that of another library")
    if isinstance(vision.values.get("layers"), list):
        raise _unserved(vision, "layers", "the image tower is a ResNet")
    if kind == SIGLIP and not TIMM.fullmatch(name := vision.text("timm_model_name")):
        raise _unserved(
            vision, "timm_model_name", f"of timm's image towers only those of SigLIP are supported, not {name}"
        )
    for tower, keys in ((vision, OF_TIMM if kind == SIGLIP else OF_VISION), (text, (*OF_TEXT, "hf_tokenizer_name"))):
        only = ONLY[kind][tower.where.rpartition(" ")[2]]
        for key, value in tower.values.items():
            if key in only and value not in only[key]:
                raise _unserved(tower, key, f"supported is {only[key][-1]!r}")
            if key not in (*keys, *only, "patch_dropout") and value not in (None, False):
                raise _unserved(tower, key, "it is not supported")
    for key, allowed in ONLY[kind]["text_cfg"].items() if kind == SIGLIP else ():
        if None not in allowed and key != "proj_type" and not text.has(key):
            raise text.unserved(f"{key}: is missing; supported is {allowed[-1]!r}")
    for key in sorted(set(text.fields("tokenizer_kwargs").values) - {"clean"}):
        raise _unserved(text.fields("tokenizer_kwargs"), key, "supported is clean")


def _unserved(fields: Fields, key: str, why: str) -> LoadError:
    given = shortened(fields.values.get(key))
    advice = "serve a checkpoint of the same model in transformers' format"
    return fields.unserved(f"{key} {given} cannot be served: {why}; {advice}")


def _vision(vision: Fields, quick_gelu: bool) -> dict[str, Any]:
    width = vision.integer("width", 768, least=1, most=LIMITS.max_width)
    return {
        "hidden_size": width,
        "num_hidden_layers": vision.integer("layers", 12, least=1),
        "num_attention_heads": width // vision.integer("head_width", 64, least=1, most=width),
        "image_size": _side(vision, "image_size"),
        "patch_size": vision.integer("patch_size", 16, least=1, most=LIMITS.max_image_side),
        **_perceptron(vision, width, quick_gelu),
    }


def _timm(vision: Fields) -> dict[str, Any]:
    found = TIMM.fullmatch(vision.text("timm_model_name"))
    assert found is not None
    width, layers, heads, middle = TIMM_SIZES[found[1]]
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": middle,
        "image_size": _side(vision, "image_size"),
        "patch_size": int(found[2]),
        "hidden_act": "gelu_pytorch_tanh" if any(part in found[0] for part in TIMM_TANH) else "gelu",
        "layer_norm_eps": 1e-6,
    }


def _text(kind: str, text: Fields, dim: int, quick_gelu: bool) -> dict[str, Any]:
    width = text.integer("width", 512, least=1, most=LIMITS.max_width)
    # In CLIP, the token with the largest id ends a text. transformers expresses this by the id 2.
    own = {"projection_size": dim} if kind == SIGLIP else {"eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 0}
    return {
        "hidden_size": width,
        "num_hidden_layers": text.integer("layers", 12, least=1),
        "num_attention_heads": text.integer("heads", 8, least=1, most=width),
        "vocab_size": text.integer("vocab_size", 49408, least=1),
        "max_position_embeddings": text.integer("context_length", 77, least=2),
        **_perceptron(text, width, quick_gelu),
        **own,
    }


def _perceptron(tower: Fields, width: int, quick_gelu: bool) -> dict[str, Any]:
    """Return the feed-forward settings of the tower's blocks; `act_kwargs` give SigLIP's approximation of GELU."""
    ratio, eps = tower.values.get("mlp_ratio", 4.0), tower.fields("norm_kwargs").values.get("eps", 1e-5)
    if not isinstance(ratio, (int, float)) or not isinstance(eps, (int, float)) or not 0 < ratio < LIMITS.max_width:
        raise tower.corrupt("mlp_ratio and norm_kwargs.eps: must be numbers")
    exact = tower.fields("act_kwargs").text("approximate", "none") == "none"
    activation = "quick_gelu" if quick_gelu else "gelu" if exact else "gelu_pytorch_tanh"
    return {"intermediate_size": int(width * ratio), "layer_norm_eps": float(eps), "hidden_act": activation}


def _side(fields: Fields, key: str) -> int:
    value = fields.values.get(key, 224)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if isinstance(value, list):
        raise fields.unserved(f"{key} {shortened(value)} cannot be served: images must be square")
    return Fields(fields.where, {key: value}).integer(key, least=1, most=LIMITS.max_image_side)


def _plan(given: Fields, side: int) -> ImagePlan:
    own = {key: value for key, value in given.values.items() if value}
    fields = Fields(given.where, {"mean": CLIP_MEAN, "std": CLIP_STD, **own})
    way = fields.one_of("resize_mode", ("shortest", "squash"))
    fields.one_of("mode", ("RGB",))
    filters = {"bicubic": BICUBIC, "bilinear": BILINEAR}
    if fields.has("size") and _side(fields, "size") != side:
        raise fields.unserved(f"size: must be {side}, like image_size in vision_cfg")
    return ImagePlan(
        resizing=Resizing(EXACT, (side, side)) if way == "squash" else Resizing(SHORTEST, (side,)),
        resample=filters[fields.one_of("interpolation", tuple(filters))],
        crop=None if way == "squash" else (side, side),
        scale=1 / 255,
        mean=three(fields, "mean"),
        std=three(fields, "std"),
        rounds_middle=True,
    )
