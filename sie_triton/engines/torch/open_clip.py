"""Rename the weights of an open_clip checkpoint to the names of transformers' CLIPModel and SiglipModel."""

import re
from collections.abc import Iterator, Mapping

import torch

from sie_triton.checkpoints.open_clip import SIGLIP
from sie_triton.errors import LoadError

State = Mapping[str, torch.Tensor]

VISION, TEXT = "vision_model", "text_model"

# Layers of one block. Fused query, key and value weights are split.
BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.proj": "self_attn.out_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
FUSED = re.compile(r"attn\.(?:in_proj_|qkv\.)(weight|bias)")

# Names of tensors, or of layers with weight and bias. In a separate text tower they have the prefix "text.".
NAMES = {
    "logit_scale": "logit_scale",
    "logit_bias": "logit_bias",
    "visual.class_embedding": f"{VISION}.embeddings.class_embedding",
    "visual.positional_embedding": f"{VISION}.embeddings.position_embedding.weight",
    "visual.conv1": f"{VISION}.embeddings.patch_embedding",
    "visual.ln_pre": f"{VISION}.pre_layrnorm",
    "visual.ln_post": f"{VISION}.post_layernorm",
    "visual.proj": "visual_projection.weight",
    "visual.trunk.patch_embed.proj": f"{VISION}.embeddings.patch_embedding",
    "visual.trunk.pos_embed": f"{VISION}.embeddings.position_embedding.weight",
    "visual.trunk.norm": f"{VISION}.post_layernorm",
    "visual.trunk.attn_pool.latent": f"{VISION}.head.probe",
    "visual.trunk.attn_pool.proj": f"{VISION}.head.attention.out_proj",
    "visual.trunk.attn_pool.norm": f"{VISION}.head.layernorm",
    "visual.trunk.attn_pool.mlp.fc1": f"{VISION}.head.mlp.fc1",
    "visual.trunk.attn_pool.mlp.fc2": f"{VISION}.head.mlp.fc2",
    "token_embedding": f"{TEXT}.embeddings.token_embedding",
    "positional_embedding": f"{TEXT}.embeddings.position_embedding.weight",
    "ln_final": f"{TEXT}.final_layer_norm",
}
BLOCKS = {
    r"visual\.transformer\.resblocks\.(\d+)\.(.+)": VISION,
    r"visual\.trunk\.blocks\.(\d+)\.(.+)": VISION,
    r"transformer\.resblocks\.(\d+)\.(.+)": TEXT,
}
# Matrices that transformers stores transposed.
POOL = "visual.trunk.attn_pool"


def renamed(kind: str, weights: State, where: str) -> State:
    """Return the renamed `weights` of a model of that kind; LoadError names a tensor that no supported tower has."""
    found = {name.removeprefix("text."): tensor for name, tensor in weights.items()}
    made = dict(_projections(found))
    for name, tensor in found.items():
        names = list(_names(name))
        if not names:
            raise LoadError(f"weights in {where}: {name} belongs to no supported tower", "unsupported")
        made |= dict(zip(names, torch.chunk(tensor, len(names)), strict=True)) if names[1:] else {names[0]: tensor}
    for name in ("visual_projection.weight", "text_projection.weight"):
        if name in made:
            made[name] = made[name].T.contiguous()
    position = made.get(f"{VISION}.embeddings.position_embedding.weight")
    if position is not None:  # timm adds a batch dimension
        made[f"{VISION}.embeddings.position_embedding.weight"] = position.flatten(0, -2)
    return {**made, **_scores(kind, made)}


def _projections(found: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the projections, which are combined from several tensors or named by kind; remove them from `found`."""
    for kind in ("weight", "bias"):
        query, others = (found.pop(f"{POOL}.{part}.{kind}", None) for part in ("q", "kv"))
        if query is not None and others is not None:
            yield f"{VISION}.head.attention.in_proj_{kind}", torch.cat([query, others])
        if (layer := found.pop(f"text_projection.{kind}", None)) is not None:
            yield f"{TEXT}.head.{kind}", layer
    if (matrix := found.pop("text_projection", None)) is not None:
        yield "text_projection.weight", matrix


def _scores(kind: str, made: State) -> State:
    """Return the parameters of scores, which do not affect vectors, in the shapes of transformers' models."""
    shape = (1,) if kind == SIGLIP else ()
    names = ("logit_scale", "logit_bias") if kind == SIGLIP else ("logit_scale",)
    return {name: made[name].reshape(shape) if name in made else torch.zeros(shape) for name in names}


def _names(name: str) -> Iterator[str]:
    layer, _, kind = name.rpartition(".")
    if name in NAMES:
        yield NAMES[name]
    elif layer in NAMES and kind in ("weight", "bias"):
        yield f"{NAMES[layer]}.{kind}"
    for pattern, tower in BLOCKS.items():
        if found := re.fullmatch(pattern, name):
            yield from _block_names(f"{tower}.encoder.layers.{found[1]}", found[2])


def _block_names(block: str, name: str) -> Iterator[str]:
    layer, _, kind = name.rpartition(".")
    if fused := FUSED.fullmatch(name):
        yield from (f"{block}.self_attn.{part}_proj.{fused[1]}" for part in "qkv")
    elif layer in BLOCK:
        yield f"{block}.{BLOCK[layer]}.{kind}"
