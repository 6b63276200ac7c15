"""Configurations of small models of open_clip."""

from typing import Any

PREPROCESS = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
VISION = {"image_size": 64, "layers": 2, "width": 48, "head_width": 16, "patch_size": 16}
TEXT = {"context_length": 77, "vocab_size": 30522, "width": 64, "heads": 4, "layers": 2}
TIMM = {"image_size": 64, "timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map", "timm_proj": "none"}
# Of a vit_base that is small: width, layers, heads, width of the perceptron.
TIMM_SIZE = (48, 2, 4, 96)
SIGLIP_TEXT = {
    **TEXT,
    "context_length": 64,
    "norm_kwargs": {"eps": 1e-6},
    "act_kwargs": {"approximate": "tanh"},
    "no_causal_mask": True,
    "proj_bias": True,
    "pool_type": "last",
    "hf_tokenizer_name": "timm/ViT-B-16-SigLIP",
}


CONFIGS: dict[str, dict[str, Any]] = {
    "clip": {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT},
    "clip, quick_gelu": {
        "embed_dim": 32,
        "quick_gelu": True,
        "vision_cfg": {**VISION, "mlp_ratio": 3.0},
        "text_cfg": {**TEXT, "norm_kwargs": {"eps": 1e-3}},
    },
    "clip, text apart": {"embed_dim": 32, "custom_text": True, "vision_cfg": VISION, "text_cfg": TEXT},
    "siglip": {
        "embed_dim": 48,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": TIMM,
        "text_cfg": SIGLIP_TEXT,
    },
}
