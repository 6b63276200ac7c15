"""Florence-2 as Microsoft published it: its config.json in the terms of transformers, and the additions of its code.

The published code is not run; transformers computes the same.
"""

from collections.abc import Mapping
from typing import Any

from sie_triton.checkpoints.files import Fields

POOLED = ("spatial_avg_pool", "temporal_avg_pool")
RENAMED = {"dim_embed": "embed_dim"}

# In the order in which they are added to the tokenizer.
TOKENS = (
    *("<od>", "</od>", "<ocr>", "</ocr>"),
    *(f"<loc_{place}>" for place in range(1000)),
    *("<cap>", "</cap>", "<ncap>", "</ncap>", "<dcap>", "</dcap>", "<grounding>", "</grounding>", "<seg>", "</seg>"),
    *("<sep>", "<region_cap>", "</region_cap>", "<region_to_desciption>", "</region_to_desciption>", "<proposal>"),
    *("</proposal>", "<poly>", "</poly>", "<and>"),
)

# Phrases that the published code never grounds.
PHRASES = (
    "it,I,me,mine,you,your,yours,he,him,his,she,her,hers,they,them,their,theirs,one,oneself,we,us,our,ours,its,myself,"
    "yourself,himself,herself,itself,ourselves,yourselves,themselves,this,that,these,those,who,whom,whose,which,what,"
    "all,another,any,anybody,anyone,anything,each,everybody,everyone,everything,few,many,nobody,none,several,some,"
    "somebody,someone,something,each other,one another,the image,image,images,the,a,an,a group,other objects,lots,a set"
)
BANNED = frozenset(PHRASES.split(","))


def is_original(config: Fields) -> bool:
    return config.fields("vision_config").has("dim_embed")


def as_transformers(config: Fields) -> Mapping[str, Any]:
    """Translate Microsoft's config.json to that of transformers.

    The padding token stands for an image: no prompt contains padding. Raises LoadError for settings that transformers
    does not have.
    """
    vision, text = config.fields("vision_config"), config.fields("text_config")
    if vision.texts("image_feature_source", POOLED) != POOLED:
        raise vision.unserved(f"image_feature_source: must be {' and '.join(POOLED)}")
    seen = {RENAMED.get(key, key): value for key, value in vision.values.items()}
    places = vision.fields("image_pos_embed").integer("max_pos_embeddings", 50, least=1)
    times = vision.fields("visual_temporal_embedding").integer("max_temporal_embeddings", 100, least=1)
    return {
        "model_type": "florence2",
        "vision_config": {
            **{name: seen[name] for name in SAME if name in seen},
            "max_position_embeddings": places,
            "max_temporal_embeddings": times,
        },
        "text_config": {**text.values, "model_type": "bart"},
        "image_token_id": text.integer("pad_token_id", 1),
    }


SAME = (
    *("depths", "embed_dim", "num_heads", "num_groups", "window_size", "projection_dim", "drop_path_rate"),
    *("patch_size", "patch_stride", "patch_padding", "patch_prenorm"),
)
