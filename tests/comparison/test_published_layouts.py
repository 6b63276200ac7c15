"""Directories as the authors of known models publish them, with small weights, beside sentence-transformers.

Names of files and keys are those of the models' public pages; sizes, weights and vocabularies are not.
"""

import json
import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from sie_triton.catalog.recognise import explain
from sie_triton.errors import SIEError
from tests.support.layouts import SETTINGS, dense, rewritten_before_6, splade, write
from tests.support.models import save_cross_encoder, save_encoder, save_pylate, save_stanford
from tests.support.random_directories import Drawn, outcome

IDENTITY = torch.nn.Identity()


def of_encoder(architecture, *layers, prompts=None, version="", length=128):
    """A dense model of an encoder and modules after it, as a version of the library saved it."""

    def build(root, tokenizer):
        save_encoder(root / "encoder", tokenizer, architecture)
        torch.manual_seed(4)
        modules = [Transformer(str(root / "encoder")), *(layer() for layer in layers)]
        model = SentenceTransformer(modules=modules, device="cpu", prompts=prompts)
        model.save(str(root / "model"), create_model_card=False)
        return rewritten_before_6(root / "model", version, length) if version else root / "model"

    return build


def in_the_root(root, tokenizer):
    """OpenSearch's models: the files of the documents' transformer stand in the root."""
    directory = splade("5.0.0", idf=True)(root, tokenizer)
    router = json.loads((directory / "router_config.json").read_text())
    name = next(each for each in router["types"] if each.endswith("Transformer"))
    if name:
        for path in (directory / name).iterdir():
            shutil.move(path, directory / path.name)
        router["types"][""] = router["types"].pop(name)
        router["structure"]["document"] = ["" if each == name else each for each in router["structure"]["document"]]
        write(directory / "router_config.json", router)
    return directory


def late_on(root, tokenizer):
    """lightonai's models by PyLate: markers, long documents, no expansion; the layer has a key of PyLate's."""
    directory = save_pylate(root, tokenizer, do_query_expansion=False, document_length=300, skiplist_words=list(".,;"))
    layer = directory / "1_Dense" / "config.json"
    write(layer, {**json.loads(layer.read_text()), "use_residual": False, "in_pylate": 1})
    write(directory / "sentence_bert_config.json", {"max_seq_length": 299, "do_lower_case": False})
    return directory


def stanford(root, tokenizer):
    """colbertv2.0 and answerai-colbert-small-v1."""
    metadata = {"query_maxlen": 32, "doc_maxlen": 220, "dim": 32, "mask_punctuation": True, "similarity": "cosine"}
    return save_stanford(root, tokenizer, metadata)


def reranker(architecture, **config):
    """A cross-encoder that transformers saved: no file of sentence-transformers."""

    def build(root, tokenizer):
        directory = save_cross_encoder(root, tokenizer, architecture, **config)
        for name in ("modules.json", SETTINGS, "sentence_bert_config.json"):
            (directory / name).unlink(missing_ok=True)
        return directory

    return build


MS_MARCO = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0.dev0"}}
INSTRUCT = {"query": "Instruct: Given a web search query\nQuery: "}
GEMMA = {"query": "task: search result | query: ", "document": "title: none | text: ", "Retrieval-query": "task: "}

SERVED = {
    "bge-base-en-v1.5": (
        "dense",
        of_encoder("bert", lambda: Pooling(64, "cls"), Normalize, version="2.2.2", length=512),
    ),
    "all-MiniLM-L6-v2": ("dense", of_encoder("bert", lambda: Pooling(64), Normalize, version="2.2.2", length=256)),
    "all-mpnet-base-v2": ("dense", of_encoder("mpnet", lambda: Pooling(64), Normalize, version="2.2.2", length=384)),
    "LaBSE": (
        "dense",
        of_encoder("bert", lambda: Pooling(64, "cls"), lambda: Dense(64, 64), Normalize, version="2.2.2", length=256),
    ),
    "nomic-embed-text-v1.5": ("dense", of_encoder("bert", lambda: Pooling(64), version="3.0.0", length=512)),
    "gte-Qwen2-1.5B-instruct": (
        "dense",
        of_encoder(
            "qwen2", lambda: Pooling(64, "lasttoken"), Normalize, version="3.0.0", prompts={"query": "Instruct: "}
        ),
    ),
    "embeddinggemma-300m": (
        "dense",
        of_encoder(
            "gemma3",
            lambda: Pooling(64),
            lambda: Dense(64, 96, bias=False, activation_function=IDENTITY),
            lambda: Dense(96, 64, bias=False, activation_function=IDENTITY),
            Normalize,
            prompts=GEMMA,
            version="5.0.0",
        ),
    ),
    "splade-v3": ("sparse", splade("5.0.0")),
    "opensearch-neural-sparse-encoding-doc-v3-distill": ("looked up", in_the_root),
    "LateOn": ("PyLate", late_on),
    "colbertv2.0": ("Stanford's", stanford),
    "ms-marco-MiniLM-L6-v2": ("pairs", reranker("bert", **MS_MARCO)),
    "bge-reranker-base": ("pairs", reranker("xlm-roberta")),
    "gte-reranker-modernbert-base": ("pairs", reranker("modernbert")),
    "mxbai-rerank-base-v1": ("pairs", reranker("deberta")),
}


@pytest.mark.parametrize("name", SERVED)
def test_a_published_layout_gives_the_librarys_results(name, tmp_path, minilm_directory):
    kind, build = SERVED[name]
    assert outcome(Drawn(kind, (), build(tmp_path, minilm_directory))) == "equal"


def with_own_code(root, tokenizer):
    """jina-embeddings-v3."""
    directory = dense("3.0.0")(root, tokenizer)
    modules = json.loads((directory / "modules.json").read_text())
    modules[0] |= {"type": "custom_st.Transformer", "kwargs": ["task"]}
    write(directory / "modules.json", modules)
    return directory


def test_a_model_with_code_of_its_own_is_refused_by_name(tmp_path, minilm_directory):
    directory = with_own_code(tmp_path, minilm_directory)
    with pytest.raises(SIEError, match=r"modules\.json: module 0: 'custom_st\.Transformer'"):
        explain(directory, "my/model", {"weights_path": str(directory)}, "")
