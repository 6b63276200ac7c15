"""Maximum number of tokens that a text model can read, by its config.json.

A test compares the tables with transformers.
"""

from sie_triton.checkpoints.files import Fields

UNLIMITED = 10**6

# Architectures whose position ids begin at padding_idx + 1, so that this many positions are never used.
COUNT_FROM_PADDING = (
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)

POSITIONS = "max_position_embeddings"

# Architectures whose config.json has another name for the number of positions. Both names are read.
OTHER_NAMES = {
    **dict.fromkeys(("codegen", "ctrl", "decision_transformer", "gpt-sw3", "gpt2", "gpt_bigcode"), "n_positions"),
    **dict.fromkeys(("gptj", "imagegpt", "openai-gpt"), "n_positions"),
    **dict.fromkeys(("bailing_hybrid", "kimi_linear"), "model_max_length"),
    "dbrx": "max_seq_len",
    "rwkv": "context_length",
}

# The library's number of positions if config.json gives none, for encoders with learned positions.
USUAL = {
    **dict.fromkeys(("albert", "bert", "bert-generation", "camembert", "convbert", "data2vec-text", "deberta"), 512),
    **dict.fromkeys(("deberta-v2", "distilbert", "electra", "ernie", "ibert", "longformer", "luke", "mpnet"), 512),
    **dict.fromkeys(("megatron-bert", "mobilebert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert"), 512),
    **dict.fromkeys(("splinter", "squeezebert", "xlm-roberta", "xmod"), 512),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), 1024),
    "big_bird": 4096,
}


def num_positions(config: Fields) -> int:
    """Return the maximum number of tokens that the library lets the model read, unless another file limits it."""
    kind = config.text("model_type", "")
    names = [name for name in (OTHER_NAMES.get(kind, POSITIONS), POSITIONS) if config.has(name)]
    if not names:
        given = USUAL.get(kind, UNLIMITED)
    elif kind == "xlnet":  # always -1
        given = UNLIMITED
    else:
        given = config.integer(names[0], least=1)
    unused = config.integer("pad_token_id", 1) + 1 if kind in COUNT_FROM_PADDING else 0
    if given <= unused:
        raise config.corrupt(f"{POSITIONS}: leaves no position past pad_token_id")
    return min(given - unused, UNLIMITED)


def is_rotary(config: Fields) -> bool:
    """Return True if positions are rotations, computed for any number of tokens."""
    kind = config.text("position_embedding_type", "")
    return kind in ("rope", "rotary") or any("rope_" in key or "rotary" in key for key in config.values)
