"""Directories as the authors of known models publish them, with small weights, beside the models' libraries.

Names of files and keys are those of the models' public pages; sizes, weights and vocabularies are not.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from sie_triton.errors import SIEError
from sie_triton.models.catalog.recognise import explain, family_in
from sie_triton.models.families.llm_reranker import FORMATS
from tests.comparison import test_nli_classification_comparison as nli
from tests.comparison.test_llm_reranker_comparison import MXBAI, QUERY, QWEN3, TEXTS, reranker_of
from tests.support.classifiers import save_classifier
from tests.support.extraction import Extractor
from tests.support.gliners import num_compared, save_gliner
from tests.support.layouts import SETTINGS, dense, rewritten_before_6, splade, write
from tests.support.library_results import outcome
from tests.support.models import (
    CONFIGS,
    save_bge_m3,
    save_causal,
    save_cross_encoder,
    save_encoder,
    save_pylate,
    save_stanford,
    save_tokenizer,
)
from tests.support.scorers import Scorer

IDENTITY = torch.nn.Identity()
PUBLISHED = yaml.safe_load((Path(__file__).parents[1] / "support" / "published_files.yaml").read_text())


def with_files(build, files):
    """Build a directory, and put keys into its JSON files: name → keys, a whole list, or None for a file to remove."""

    def build_with(root, tokenizer):
        directory = build(root, tokenizer)
        for name, keys in files.items():
            path = directory / name
            if keys is None:
                path.unlink()
            elif isinstance(keys, list):
                write(path, keys)
            else:
                write(path, {**(json.loads(path.read_text()) if path.exists() else {}), **keys})
        return directory

    return build_with


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
    return save_stanford(root, tokenizer, PUBLISHED["artifact.metadata"])


def of_both(root, tokenizer):
    """answerai-colbert-small-v1: PyLate's modules in folders, and Stanford's files beside them."""
    directory = save_pylate(root, tokenizer)
    shutil.move(stanford(root / "of Stanford", tokenizer), root / "whole")
    for path in [each for each in directory.iterdir() if each.name not in ("1_Dense", "modules.json", SETTINGS)]:
        (directory / "0_Transformer").mkdir(exist_ok=True)
        path.rename(directory / "0_Transformer" / path.name)
    modules = json.loads((directory / "modules.json").read_text())
    write(directory / "modules.json", [{**modules[0], "path": "0_Transformer"}, *modules[1:]])
    return Path(shutil.copytree(root / "whole", directory, dirs_exist_ok=True))


def potion(root, tokenizer):
    """minishlab's models by model2vec: all files in the root, and no folder for the second module."""
    shutil.copy(tokenizer / "tokenizer.json", root)
    torch.manual_seed(5)
    save_file({"embeddings": torch.randn(30522, 24)}, root / "model.safetensors")
    return root


def text2vec(root, tokenizer):
    """Its pooling names one mode only."""
    directory = of_encoder("bert", lambda: Pooling(64), version="2.2.2")(root, tokenizer)
    write(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True})
    return directory


def reranker(architecture, **config):
    """A cross-encoder that transformers saved: no file of sentence-transformers."""

    def build(root, tokenizer):
        directory = save_cross_encoder(root, tokenizer, architecture, **config)
        for name in ("modules.json", SETTINGS, "sentence_bert_config.json"):
            (directory / name).unlink(missing_ok=True)
        return directory

    return build


GEMMA = {"query": "task: search result | query: ", "document": "title: none | text: ", "Retrieval-query": "task: "}

SERVED = {
    "LaBSE": of_encoder(
        "bert", lambda: Pooling(64, "cls"), lambda: Dense(64, 64), Normalize, version="2.2.2", length=256
    ),
    "gte-Qwen2-1.5B-instruct": of_encoder(
        "qwen2", lambda: Pooling(64, "lasttoken"), Normalize, version="3.0.0", prompts={"query": "Instruct: "}
    ),
    "embeddinggemma-300m": of_encoder(
        "gemma3",
        lambda: Pooling(64),
        lambda: Dense(64, 96, bias=False, activation_function=IDENTITY),
        lambda: Dense(96, 64, bias=False, activation_function=IDENTITY),
        Normalize,
        prompts=GEMMA,
        version="5.0.0",
    ),
    "text2vec-base-chinese": with_files(text2vec, {SETTINGS: None}),
    "bge-m3": lambda *places: rewritten_before_6(save_bge_m3(*places), "2.2.2", 512),
    "potion-base-8M": with_files(potion, PUBLISHED["potion-base-8M"]),
    "splade-v3": with_files(splade("5.0.0"), {"1_SpladePooling/config.json": {"word_embedding_dimension": None}}),
    "opensearch-neural-sparse-encoding-doc-v3-distill": in_the_root,
    "LateOn": late_on,
    "answerai-colbert-small-v1": of_both,
    "mxbai-rerank-base-v1": reranker("deberta"),
}


@pytest.mark.parametrize("name", SERVED)
def test_a_published_layout_gives_the_librarys_results(name, tmp_path, minilm_directory):
    assert outcome(SERVED[name](tmp_path, minilm_directory)) == "equal"


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


def language_model(root, tokenizer, name):
    """Qwen3-Reranker and mxbai-rerank-v2: a module reads the logits of two tokens; a chat template has the roles."""
    published, form = PUBLISHED[name], FORMATS[RERANKERS[name].input_format]
    directory = save_causal(root, tokenizer, published["architecture"])
    tokens = dict(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"])
    own = RERANKERS[name]
    write(
        directory / "1_LogitScore" / "config.json",
        {"true_token_id": tokens[own.yes_token], "false_token_id": tokens[own.no_token]},
    )
    system, query, document = (
        f"{{{{ messages | selectattr('role', 'eq', '{role}') | map(attribute='content') | first }}}}"
        for role in ("system", "query", "document")
    )
    instruction = f"{form.instruction}{system}\n" if published["settings"]["prompts"] else ""
    template = f"{form.before}{instruction}{form.query}{query}\n{form.text}{document}{form.after}"
    (directory / "chat_template.jinja").write_text(f"{template}\n")  # Jinja takes the last line break away
    files = {"modules.json": PUBLISHED["LogitScore"]["modules.json"], SETTINGS: published["settings"]}
    bert = {"sentence_bert_config.json": PUBLISHED["LogitScore"]["sentence_bert_config.json"]}
    return with_files(lambda *_: directory, {**files, **bert})(root, tokenizer)


RERANKERS = {"Qwen3-Reranker-0.6B": QWEN3, "mxbai-rerank-base-v2": MXBAI}


@pytest.mark.parametrize("name", RERANKERS)
def test_a_language_model_that_judges_gives_the_librarys_logits(name, tmp_path, minilm_directory):
    directory = language_model(tmp_path, minilm_directory, name)
    assert family_in(directory)[0] == "causal_cross_encoder"
    library = CrossEncoder(str(directory), device="cpu", local_files_only=True)
    scores = library.predict([(QUERY, text) for text in TEXTS], batch_size=1)
    np.testing.assert_allclose(Scorer("causal_cross_encoder", directory)(QUERY, TEXTS), scores, rtol=1e-4, atol=2e-5)
    logits = library.predict([(QUERY, text) for text in TEXTS], batch_size=1, activation_fn=IDENTITY)
    expected = logits if name.startswith("mxbai") else 1 / (1 + np.exp(-logits))
    assert np.std(logits) > 0.2
    np.testing.assert_allclose(reranker_of(directory, RERANKERS[name])(QUERY, TEXTS), expected, rtol=1e-4, atol=2e-5)


def old_gliner(root, tokenizer, name, **config):
    """Save a GLiNER as its versions before 0.2.8 did: without its tokenizer and the encoder's settings, which come from
    the encoder's repository.
    """
    library = save_gliner(root, tokenizer, "deberta", hidden_size=48, max_width=PUBLISHED[name]["max_width"], **config)
    directory = root / "model"
    for path in directory.iterdir():
        if path.name != "model.safetensors":
            path.unlink()
    write(directory / "gliner_config.json", {**PUBLISHED[name], "hidden_size": 48})
    save_tokenizer(directory / "encoder", tokenizer)
    CONFIGS["deberta"].save_pretrained(directory / "encoder")
    return library, directory


@pytest.mark.parametrize("name", ["gliner_small-v2", "gliner_large-v1", "NuNER_Zero"])
def test_a_published_gliner_gives_the_librarys_entities(name, tmp_path, minilm_directory):
    library, directory = old_gliner(tmp_path, minilm_directory, name, span_mode=PUBLISHED[name]["span_mode"])
    assert num_compared(Extractor("gliner", directory), library, [{"threshold": 0.5}, {"threshold": 0.3}]) > 20


def test_a_published_bart_gives_the_pipelines_classes(tmp_path, minilm_directory):
    def build(root, tokenizer):
        return save_classifier(root, tokenizer, "bart", labels=nli.THREE)

    directory = with_files(build, {"config.json": PUBLISHED["bart-large-mnli"]})(tmp_path, minilm_directory)
    assert explain(directory, "my/model", {"weights_path": str(directory)}, "")[0].family == "nli_classification"
    library = transformers.pipeline("zero-shot-classification", model=str(directory), device="cpu")
    for text, found in zip(TEXTS, Extractor("nli_classification", directory)(TEXTS, nli.LABELS), strict=True):
        nli.assert_same(found, nli.in_pipeline(library, text, nli.LABELS))
