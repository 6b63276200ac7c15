"""The modules of sentence-transformers, the keys that it reads from their files, and whether each key is obeyed here.

Data. A test compares it with the installed version: a module or a key of a new version must be added.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sie_triton.checkpoints.files import Fields, shortened


@dataclass(frozen=True, slots=True)
class Only:
    """Values that change nothing; a file with another value is refused. null counts as missing."""

    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Unread:
    """A key without effect on results."""

    reason: str


OBEYED = "obeyed"

Rule = str | Only | Unread

OF_DOWNLOADS = Unread("it chooses what is downloaded; a directory is served as it is")
OF_THE_LIBRARY = Unread("it chooses how the library computes, not what")
OF_TRAINING = Unread("it is for training")
ABOUT = Unread("it describes the model")

LENGTHS = ("query_length", "document_length", "query_expansion")

# Arguments that a file passes on to transformers' from_pretrained, whatever it loads.
PASSED_ON: Mapping[str, Rule] = {
    **dict.fromkeys(("subfolder", "token", "cache_dir", "revision", "code_revision", "local_files_only"), OF_DOWNLOADS),
    **dict.fromkeys(("force_download", "proxies", "resume_download", "use_auth_token"), OF_DOWNLOADS),
    "trust_remote_code": Unread("the library ignores it in files"),
}

# Arguments of transformers' tokenizers. None of them names code or another file.
OF_TOKENIZERS: Mapping[str, Rule] = {
    **PASSED_ON,
    "use_fast": Unread("tokenizers are always the fast ones"),
    **dict.fromkeys(("model_max_length", "truncation_side", "padding_side", "model_input_names"), OBEYED),
    **dict.fromkeys(("add_bos_token", "add_eos_token", "add_prefix_space", "trim_offsets"), OBEYED),
    **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars", "split_special_tokens"), OBEYED),
    **dict.fromkeys(("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"), OBEYED),
    **dict.fromkeys(("mask_token", "additional_special_tokens", "extra_special_tokens"), OBEYED),
    "clean_up_tokenization_spaces": Unread("it is for turning ids into text"),
}

OF_CONFIGS: Mapping[str, Rule] = {
    **PASSED_ON,
    **dict.fromkeys(("attn_implementation", "use_cache"), OF_THE_LIBRARY),
    **dict.fromkeys(("dtype", "torch_dtype"), Unread("the profile chooses the number format")),
}

OF_MODELS: Mapping[str, Rule] = {
    **OF_CONFIGS,
    **dict.fromkeys(("device_map", "low_cpu_mem_usage", "provider", "export"), OF_THE_LIBRARY),
    "use_safetensors": Unread("weights are always safetensors"),
    "add_pooling_layer": Unread("states are read before that layer"),
}

# Arguments of each call of the tokenizer.
OF_CALLS: Mapping[str, Rule] = {
    **dict.fromkeys(("padding", "padding_side", "pad_to_multiple_of"), Unread("padding is not computed")),
    **dict.fromkeys(("return_tensors", "return_attention_mask"), OF_THE_LIBRARY),
    "truncation": Only((True, "longest_first")),
    "add_special_tokens": Only((True,)),
    "logits_to_keep": Unread("it is for language models that generate"),
}

CALLS: Mapping[str, Rule] = {
    **dict.fromkeys(("text", "common", "chat_template"), OBEYED),
    **dict.fromkeys(("audio", "image", "video"), Unread("it is for inputs other than plain texts")),
}

# Arguments of each call of a chat template.
OF_TEMPLATES: Mapping[str, Rule] = {
    **dict.fromkeys(("add_generation_prompt", "enable_thinking"), OBEYED),
    "restore_suffix": Only((True,)),
}

EXPANSION: Mapping[str, Rule] = dict.fromkeys(("strategy", "attend", "token", "length"), OBEYED)

TRANSFORMER: Mapping[str, Rule] = {
    **dict.fromkeys(("transformer_task", "modality_config", "processing_kwargs", *LENGTHS), OBEYED),
    **dict.fromkeys(("max_seq_length", "do_lower_case", "processor_kwargs", "tokenizer_args"), OBEYED),
    **dict.fromkeys(("model_kwargs", "model_args", "config_kwargs", "config_args"), OBEYED),
    "module_output_name": Only(("token_embeddings", "scores", "causal_logits")),
    "tokenizer_name_or_path": Only(),
    "unpad_inputs": OF_THE_LIBRARY,
    "backend": OF_THE_LIBRARY,
    "cache_dir": OF_DOWNLOADS,
}

# Modules that a family serves → the keys of their files. A module with other keys does not load in the library either,
# except for those in LENIENT.
KEYS: Mapping[str, Mapping[str, Rule]] = {
    "Transformer": TRANSFORMER,
    "MLMTransformer": TRANSFORMER,
    "CLIPModel": TRANSFORMER,
    "Pooling": {
        **dict.fromkeys(("pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension"), OBEYED),
        **dict.fromkeys(("pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens"), OBEYED),
        **dict.fromkeys(("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"), OBEYED),
        "pooling_mode_lasttoken": OBEYED,
    },
    "Dense": {
        **dict.fromkeys(("in_features", "out_features", "bias", "activation_function"), OBEYED),
        **dict.fromkeys(("module_input_name", "module_output_name"), OBEYED),
        "use_residual": Only((False,)),
        **dict.fromkeys(("init_weight", "init_bias"), Only()),
    },
    "Normalize": dict.fromkeys(("module_input_name", "module_output_name"), OBEYED),
    "Dropout": {"dropout": OF_TRAINING},
    "Router": {
        **dict.fromkeys(("types", "structure", "parameters"), OBEYED),
        **dict.fromkeys(("default_route", "allow_empty_key", "route_mappings"), OBEYED),
    },
    "SpladePooling": {
        **dict.fromkeys(("pooling_strategy", "activation_function"), OBEYED),
        **dict.fromkeys(("embedding_dimension", "word_embedding_dimension"), ABOUT),
        "chunk_size": OF_THE_LIBRARY,
    },
    "SparseStaticEmbedding": {"frozen": OF_TRAINING, "path": Only()},
    "StaticEmbedding": {},
    "LogitScore": {
        **dict.fromkeys(("true_token_id", "false_token_id"), OBEYED),
        "module_input_name": Only(("causal_logits",)),
    },
    "MultiVectorMask": dict.fromkeys(("skiplist_words", "skiplist_tasks", "keep_only_token_ids"), OBEYED),
}
LENIENT = ("Dense", "Normalize", "StaticEmbedding")

# Modules of the library that no family serves; their keys do not matter.
UNSERVED = (
    "BaseTokenPooling",
    "BoW",
    "CNN",
    "HierarchicalTokenPooling",
    "LSTM",
    "LambdaTokenPooling",
    "LayerNorm",
    "SparseAutoEncoder",
    "WeightedLayerPooling",
    "WordEmbeddings",
    "WordWeights",
)

OF_ALL: Mapping[str, Rule] = {
    **dict.fromkeys(("model_type", "prompts", "default_prompt_name"), OBEYED),
    "__version__": ABOUT,
    "requirements": Unread("they name versions of packages that do not run here"),
}

OF_VECTORS: Mapping[str, Rule] = {**OF_ALL, "similarity_fn_name": Unread("the client compares vectors")}

# Class that saved a directory → the keys of config_sentence_transformers.json. The library ignores all others.
SAVED: Mapping[str, Mapping[str, Rule]] = {
    "SentenceTransformer": {**OF_VECTORS, "truncate_dim": OBEYED},
    "SparseEncoder": {**OF_VECTORS, "max_active_dims": OBEYED},
    "CrossEncoder": {
        **OF_ALL,
        "activation_fn": OBEYED,
        "keep_in_fp32_modules": Unread("the profile chooses the number format"),
    },
    "MultiVectorEncoder": {
        **OF_VECTORS,
        **dict.fromkeys((*LENGTHS, "query_prefix", "document_prefix", "skiplist_words"), OBEYED),
        **dict.fromkeys(("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens"), OBEYED),
    },
}

# Packages from which the library's versions import modules, and those below which each module has a file.
PACKAGES = (
    "sentence_transformers.models",
    "sentence_transformers.sparse_encoder.models",
    "sentence_transformers.base.modules",
    "sentence_transformers.sentence_transformer.modules",
    "sentence_transformers.sparse_encoder.modules",
    "sentence_transformers.cross_encoder.modules",
    "sentence_transformers.multi_vector_encoder.modules",
)

# Files that are not named after their class, and former names of classes.
FILES = {"CNN": "cnn", "LSTM": "lstm", "BoW": "bow", "CLIPModel": "clip_model", "MLMTransformer": "mlm_transformer"}
ALIASES = {"pylate.models.Dense.Dense": "Dense"}
FORMER = {"Asym": "Router"}


def class_of(dotted: str) -> str:
    """Return the name of the library's class that modules.json calls `dotted`; empty if it is no class of the library.

    >>> class_of("sentence_transformers.models.Pooling"), class_of("custom_st.Pooling")
    ('Pooling', '')
    >>> class_of("sentence_transformers.base.modules.router.Router"), class_of("sentence_transformers.models.Asym")
    ('Router', 'Router')
    """
    if dotted in ALIASES:
        return ALIASES[dotted]
    package = next((each for each in PACKAGES if dotted.startswith(f"{each}.")), "")
    file, _, last = dotted.removeprefix(f"{package}.").rpartition(".")
    name = FORMER.get(last, last)
    known = package and (name in KEYS or name in UNSERVED)
    return name if known and file in ("", last, _file_of(name)) else ""


def check_keys(fields: Fields, rules: Mapping[str, Rule], *, is_lenient: bool = False) -> Fields:
    """Return `fields`. Raise LoadError for the first key that would change a result.

    With `is_lenient`, the library ignores keys that it does not know.
    """
    for key, value in fields.values.items():
        rule = rules.get(key, Unread("") if is_lenient else Only())
        if isinstance(rule, Only) and value is not None and value not in rule.values:
            given = f"{shortened(key)}: {shortened(value)} cannot be served"
            raise fields.unserved(f"{given}; leave {'it' if key in rules else 'this key'} out")
    return fields


def _file_of(name: str) -> str:
    """Return the name of a class's file: multi_vector_mask for MultiVectorMask."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return FILES.get(name, "token_pooling" if name.endswith("TokenPooling") else words.removeprefix("_"))
