"""Small models of open_clip: its modules, by their names and in their order, written in plain torch, so that their
state is what open_clip saves.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from tests.support.towers import enlarge

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


class QuickGelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, middle: int, activation: nn.Module, eps: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, eps=eps) for _ in range(2))
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        layers = [("c_fc", nn.Linear(width, middle)), ("gelu", activation), ("c_proj", nn.Linear(middle, width))]
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x, mask=None):
        inner = self.ln_1(x)
        x = x + self.attn(inner, inner, inner, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Blocks(nn.Module):
    def __init__(self, number: int, *each: Any) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList([Block(*each) for _ in range(number)])

    def forward(self, x, mask=None):
        for block in self.resblocks:
            x = block(x, mask)
        return x


class Vision(nn.Module):
    def __init__(self, dim: int, settings: Mapping[str, Any], activation: nn.Module) -> None:
        super().__init__()
        width, patch = settings["width"], settings["patch_size"]
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.positional_embedding = nn.Parameter(torch.randn((settings["image_size"] // patch) ** 2 + 1, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        middle = int(width * settings.get("mlp_ratio", 4.0))
        self.transformer = Blocks(settings["layers"], width, width // settings["head_width"], middle, activation, 1e-5)
        self.proj = nn.Parameter(torch.randn(width, dim) * width**-0.5)

    def forward(self, pixels):
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(patches), 1, -1)
        x = self.ln_pre(torch.cat([first, patches], 1) + self.positional_embedding)
        return self.ln_post(self.transformer(x))[:, 0] @ self.proj


class Text(nn.Module):
    def __init__(self, dim: int, settings: Mapping[str, Any], activation: nn.Module) -> None:
        super().__init__()
        width, eps = settings["width"], settings.get("norm_kwargs", {}).get("eps", 1e-5)
        self.token_embedding = nn.Embedding(settings["vocab_size"], width)
        self.positional_embedding = nn.Parameter(torch.randn(settings["context_length"], width) * 0.1)
        middle = int(width * settings.get("mlp_ratio", 4.0))
        self.transformer = Blocks(settings["layers"], width, settings["heads"], middle, activation, eps)
        self.ln_final = nn.LayerNorm(width, eps=eps)
        self.has_bias, self.sees_all = settings.get("proj_bias", False), settings.get("no_causal_mask", False)
        if self.has_bias:
            self.text_projection: Any = nn.Linear(width, dim)
        else:
            self.text_projection = nn.Parameter(torch.randn(width, dim) * width**-0.5)

    def forward(self, ids):
        length = ids.shape[1]
        mask = None if self.sees_all else torch.full((length, length), float("-inf")).triu(1)
        states = self.ln_final(self.transformer(self.token_embedding(ids) + self.positional_embedding[:length], mask))
        if self.has_bias:
            return self.text_projection(states[:, -1])
        return states[torch.arange(len(ids)), ids.argmax(1)] @ self.text_projection


class TimmAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        both = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(functional.scaled_dot_product_attention(*both).transpose(1, 2).flatten(2))


class TimmPerceptron(nn.Module):
    def __init__(self, width: int, middle: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, middle), nn.Linear(middle, width)

    def forward(self, x):
        return self.fc2(functional.gelu(self.fc1(x)))


class TimmBlock(nn.Module):
    def __init__(self, width: int, heads: int, middle: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.attn, self.mlp = TimmAttention(width, heads), TimmPerceptron(width, middle)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TimmPool(nn.Module):
    def __init__(self, width: int, heads: int, middle: int) -> None:
        super().__init__()
        self.heads, self.latent = heads, nn.Parameter(torch.randn(1, 1, width))
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm, self.mlp = nn.LayerNorm(width, eps=1e-6), TimmPerceptron(width, middle)

    def forward(self, x):
        query = self.q(self.latent).expand(len(x), -1, -1).unflatten(2, (self.heads, -1)).transpose(1, 2)
        keys, values = self.kv(x).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        pooled = self.proj(functional.scaled_dot_product_attention(query, keys, values).transpose(1, 2).flatten(2))
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]


class TimmTrunk(nn.Module):
    def __init__(self, side: int, patch: int, size: tuple[int, int, int, int]) -> None:
        super().__init__()
        width, layers, heads, middle = size
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.pos_embed = nn.Parameter(torch.randn(1, (side // patch) ** 2, width) * 0.1)
        self.blocks = nn.ModuleList([TimmBlock(width, heads, middle) for _ in range(layers)])
        self.norm, self.attn_pool = nn.LayerNorm(width, eps=1e-6), TimmPool(width, heads, middle)

    def forward(self, pixels):
        x = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.attn_pool(self.norm(x))


class Towers(nn.Module):
    """Towers of `model_cfg`; `encode_text` reads ids padded as the library pads them, `encode_image` scaled pixels."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        dim, vision, text = config["embed_dim"], config["vision_cfg"], config["text_cfg"]
        activation = QuickGelu() if config.get("quick_gelu") else nn.GELU(**text.get("act_kwargs", {}))
        if "timm_model_name" in vision:
            self.visual: nn.Module = nn.ModuleDict({"trunk": TimmTrunk(vision["image_size"], 16, TIMM_SIZE)})
        else:
            self.visual = Vision(dim, vision, QuickGelu() if config.get("quick_gelu") else nn.GELU())
        tower = Text(dim, text, activation)
        self.logit_scale = nn.Parameter(torch.ones([]))
        self.is_apart = bool(config.get("custom_text"))
        if self.is_apart:
            self.text = tower
            if "init_logit_bias" in config:
                self.logit_bias = nn.Parameter(torch.ones([]))
        else:  # CLIP has the parts of it as its own
            for name, part in [*tower.named_children(), *tower.named_parameters(recurse=False)]:
                setattr(self, name, part)
            object.__setattr__(self, "text", tower)

    @torch.inference_mode()
    def encode_image(self, pixels):
        return self.visual["trunk"](pixels) if isinstance(self.visual, nn.ModuleDict) else self.visual(pixels)

    @torch.inference_mode()
    def encode_text(self, ids):
        return self.text(ids)


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


def save_open_clip(directory: Path, config: Mapping[str, Any], preprocess: Mapping[str, Any] = PREPROCESS) -> Towers:
    """Save the weights and the configuration of a model; a tokenizer goes beside them."""
    torch.manual_seed(5)
    model = Towers(config).eval()
    enlarge(model)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        directory / "open_clip_model.safetensors",
    )
    saved = {"model_cfg": config, "preprocess_cfg": preprocess}
    (directory / "open_clip_config.json").write_text(json.dumps(saved))
    return model
