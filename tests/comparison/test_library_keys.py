"""The tables of modules, keys and positions, compared with the installed sentence-transformers and transformers.

A release of a library that brings a module or a key fails a test here: decide what becomes of it, and add it.
"""

import ast
import importlib
import inspect
import pkgutil
import textwrap

import pytest
import sentence_transformers
import transformers
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules.module import Module
from sentence_transformers.base.modules.transformer import ProcessingKwargs, QueryExpansionConfig, Transformer
from sentence_transformers.multi_vector_encoder.model import _CLASS_REF_ALIASES
from sentence_transformers.sentence_transformer.modules import pooling
from sentence_transformers.util.deprecated_import import DEPRECATED_MODULE_PATHS
from sentence_transformers.util.misc import import_from_string

from sie_triton.checkpoints.library_keys import (
    ALIASES,
    CALLS,
    EXPANSION,
    KEYS,
    LENIENT,
    PACKAGES,
    SAVED,
    UNSERVED,
    Unread,
    class_of,
)
from sie_triton.checkpoints.positions import COUNT_FROM_PADDING, OTHER_NAMES, POSITIONS, USUAL

HOMES = ("base", "sentence_transformer", "sparse_encoder", "cross_encoder", "multi_vector_encoder")


def every_module():
    for home in HOMES:
        package = importlib.import_module(f"sentence_transformers.{home}.modules")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(info.name)
    found = [Module]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each.__module__.startswith("sentence_transformers.")]
    return [kind for kind in found if kind.__name__ not in ("Module", "InputModule")]


MODULES = {kind.__name__: kind for kind in every_module()}


def arguments(kind):
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)} - {"self"}


# Read by the library in addition to a module's arguments, and arguments that no file can give.
ALSO = {
    "Transformer": {"model_args", "tokenizer_args", "config_args", "cache_dir"},
    "Pooling": set(pooling._LEGACY_POOLING_MODE_KWARGS),
    "Router": {"types", "structure", "parameters"},
    "SparseStaticEmbedding": {"path"},
}
NOT_IN_FILES = {"model_name_or_path", "sub_modules", "tokenizer", "weight", "embedding_weights", "embedding_dim"}


def keys_of(kind):
    if issubclass(kind, Transformer):
        return (arguments(Transformer) | ALSO["Transformer"]) - NOT_IN_FILES
    own = arguments(kind) | set(kind.config_keys) | set(kind.config_key_renames)
    return (own | ALSO.get(kind.__name__, set())) - NOT_IN_FILES


def test_each_module_of_the_library_is_served_or_refused_by_name():
    assert {*KEYS, *UNSERVED} == set(MODULES)


@pytest.mark.parametrize("name", KEYS)
def test_each_key_of_a_module_has_a_rule(name):
    assert set(KEYS[name]) == keys_of(MODULES[name])


def test_the_nested_keys_have_rules():
    assert set(CALLS) == set(ProcessingKwargs.__annotations__)
    assert set(EXPANSION) == set(QueryExpansionConfig.__annotations__)


def test_an_unknown_key_is_ignored_where_the_library_ignores_it():
    ignores = {name for name, kind in MODULES.items() if name in KEYS and "if key in" in inspect.getsource(kind.load)}
    assert ignores | {"StaticEmbedding"} == set(LENIENT)


def test_each_key_without_effect_has_a_reason():
    rules = [rule for table in (*KEYS.values(), *SAVED.values(), CALLS) for rule in table.values()]
    assert all(rule.reason for rule in rules if isinstance(rule, Unread))


# Words in the code that reads config_sentence_transformers.json, which are no keys of it.
WORDS = {
    *("sentence_transformers", "query", "document", "prompts", "ColBERT", "", "strategy", "fixed", "attend", "length"),
    *("README.md", "config_sentence_transformers.json", "modules.json", "utf8", "path", "type", "kwargs", "name"),
    *("model_args", "config_args", "tokenizer_args", "model_kwargs", "config_kwargs", "processor_kwargs"),
    *("modality_config", "module_output_name", "module_classes", "init_defaults", "0123456789abcdef"),
}


def strings(*functions):
    trees = (ast.parse(textwrap.dedent(inspect.getsource(function))) for function in functions)
    found = [node for tree in trees for node in ast.walk(tree)]
    docs = {ast.get_docstring(node, clean=False) for node in found if isinstance(node, ast.FunctionDef)}
    texts = {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts - docs if " " not in text}


@pytest.mark.parametrize("kind", [SentenceTransformer, SparseEncoder, CrossEncoder, MultiVectorEncoder])
def test_each_key_of_the_saved_settings_has_a_rule(kind):
    base = sentence_transformers.base.BaseModel
    read = strings(base._parse_model_config, base._load_config_modules, kind._parse_model_config)
    written = strings(base._get_model_config, kind._get_model_config) - {"pytorch", "transformers"}
    knobs = {"query_length", "document_length", "query_expansion"} if kind is MultiVectorEncoder else set()
    assert (read | written | knobs) - WORDS | {"prompts"} == set(SAVED[kind.__name__])


def test_the_library_has_no_other_names_for_its_modules():
    for package in PACKAGES:
        for name, found in vars(importable(package)).items():
            if isinstance(found, type) and issubclass(found, Module) and found.__name__ in MODULES:
                assert class_of(f"{package}.{name}") == found.__name__
    for old in DEPRECATED_MODULE_PATHS:
        name = old.rpartition(".")[2]
        if old.rpartition(".")[0] in PACKAGES and {name, FORMER.get(name)} & set(MODULES):
            assert class_of(f"{old}.{name}") == FORMER.get(name, name)
    for name, kind in MODULES.items():
        assert class_of(f"{kind.__module__}.{kind.__qualname__}") == name
    assert {old: new.rpartition(".")[2] for old, new in _CLASS_REF_ALIASES.items()} == ALIASES


FORMER = {"Asym": "Router"}


def importable(package):
    return importlib.import_module(DEPRECATED_MODULE_PATHS.get(package, package))


@pytest.mark.parametrize("name", ["models.Pooling", "base.modules.dense.Dense", "sparse_encoder.models.SpladePooling"])
def test_a_name_means_what_it_means_to_the_library(name):
    dotted = f"sentence_transformers.{name}"
    assert import_from_string(dotted).__name__ == class_of(dotted)


def configs():
    for kind in transformers.CONFIG_MAPPING:
        try:
            yield kind, transformers.CONFIG_MAPPING[kind]()
        except Exception:  # some need arguments
            continue


def test_each_architecture_has_its_name_of_the_positions_and_their_usual_number():
    for kind, config in configs():
        name = type(config).attribute_map.get(POSITIONS, POSITIONS)
        assert OTHER_NAMES.get(kind, POSITIONS) == name, kind
        if kind in USUAL:
            assert getattr(config, POSITIONS) == USUAL[kind], kind


def test_position_ids_begin_behind_the_padding_where_the_library_has_them_begin():
    for kind in COUNT_FROM_PADDING:
        model = type(transformers.AutoModel.from_config(small(kind)))
        assert "create_position_ids_from_input_ids" in inspect.getsource(inspect.getmodule(model)), kind


def small(kind):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.AutoConfig.for_model(kind, vocab_size=99, pad_token_id=1, **sizes)
