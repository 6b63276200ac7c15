"""The weights of Florence-2 as Microsoft published it, renamed to transformers' names."""

import re
from typing import Any

from transformers import AutoModelForImageTextToText, GenerationConfig, PreTrainedModel

from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import model_of
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.florence2 import Florence2Files

# Applied in this order, each where it matches.
NAMES = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^image_projection$", "model.multi_modal_projector.image_projection.weight"),
    (r"^image_proj_norm\.", "model.multi_modal_projector.image_proj_norm."),
    (r"^image_pos_embed\.", "model.multi_modal_projector.image_position_embed."),
    (r"^visual_temporal_embed\.", "model.multi_modal_projector.visual_temporal_embed."),
    (r"^vision_tower\.", "model.vision_tower."),
    (r"\.convs\.(\d+)\.proj\.", r".convs.\1.conv."),
    (r"\.fn\.dw\.", "."),
    (r"\.(?:window|channel)_attn\.norm\.", ".norm1."),
    (r"\.ffn\.norm\.", ".norm2."),
    (r"\.fn\.net\.", "."),
    (r"_attn\.fn\.", "_attn."),
)

# Settings of answer generation in the text model's configuration.
GENERATION = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id"),
    *("forced_eos_token_id", "no_repeat_ngram_size", "early_stopping"),
)


def load_original(files: Florence2Files, engine: TorchEngine) -> PreTrainedModel:
    assert files.original is not None
    weights = Checkpoint(files.directory, engine.dtype, engine.device).below("")
    state = {renamed(name): weight for name, weight in weights.items()}
    projection = "model.multi_modal_projector.image_projection.weight"
    if projection in state:
        state[projection] = state[projection].T.contiguous()
    model: Any = model_of(
        files.original, state, files.directory, engine.dtype, engine.device, AutoModelForImageTextToText
    )
    text = files.original["text_config"]
    model.generation_config = GenerationConfig.from_dict({name: text[name] for name in GENERATION if name in text})
    loaded: PreTrainedModel = model
    return loaded


def renamed(name: str) -> str:
    """Return transformers' name for a tensor of the published checkpoint.

    >>> renamed("vision_tower.blocks.0.1.spatial_block.ffn.fn.net.fc1.bias")
    'model.vision_tower.blocks.0.1.spatial_block.ffn.fc1.bias'
    """
    for pattern, new in NAMES:
        name = re.sub(pattern, new, name)
    return name
