"""Extraction with several LoRA adapters in one forward pass equals that of the libraries with peft."""

from functools import partial

import pytest
import transformers

from tests.comparison import test_nli_classification_comparison as nli
from tests.comparison import test_sequence_classification_comparison as classes
from tests.comparison import test_stablebridge_pruner_comparison as pruner
from tests.comparison import test_token_classification_comparison as token_labels
from tests.support.classifiers import TEXTS as CLASSIFIED
from tests.support.classifiers import save_classifier
from tests.support.extraction import Extractor
from tests.support.gliners import LABELS, TEXTS, assert_same, save_gliner, save_gliner_bi
from tests.support.loras import save_lora
from tests.support.pruners import Pruner, save_pruner

OF_BERT = ({"target_modules": ["query", "dense"]}, {"target_modules": ["value"], "use_dora": True})
# Some of these layers also project the relative positions.
OF_DEBERTA = ({"target_modules": "all-linear"}, {"target_modules": ["value_proj", "dense"]})
OF_TOKENS = {"target_modules": ["query"], "task_type": "TOKEN_CLS"}
OF_HEAD = ({"target_modules": ["query", "dense"], "task_type": "SEQ_CLS"}, OF_BERT[1])


def check(ours, configs, directory, swap, expected, same, texts, *labels, **options):
    """Assert results equal to the library's.

    `swap(model)` replaces the library's encoder and returns the previous one; `swap(None)` only returns it.
    `expected` runs the library. One batch holds every text three times: without an adapter, and with each.
    """
    found_by, base = {"": expected()}, swap(None)
    for name, config in zip(("one", "other"), configs, strict=True):
        swap(save_lora(directory / name, base, seed=len(name), **config))
        found_by[name] = expected()
        ours.adapter.encoder.add_lora(name, directory / name)
    swap(base)
    requests = [(texts, *(labels or ((),)), {**options, "lora": name}) for name in found_by]
    for name, found in zip(found_by, ours.extract(requests), strict=True):
        assert found_by[name]
        _compare(same, found, found_by[name])
    compare = partial(_compare, same, ours(texts, *labels, **options))
    compare(found_by[""])
    with pytest.raises(AssertionError):  # negative control: the base differs
        compare(found_by["one"])


def _compare(same, found, expected):
    for i, each in enumerate(zip(found, expected, strict=True)):
        same(*each, i)


def attribute(owner, name, model):
    """Return the current attribute, and replace it with `model` unless that is None."""
    before = getattr(owner, name)
    if model is not None:
        setattr(owner, name, model)
    return before


@pytest.mark.parametrize(
    ("family", "save", "configs"),
    [
        ("gliner", save_gliner, OF_BERT),
        ("gliner", partial(save_gliner, architecture="deberta-shared", kind="token", hidden_size=48), OF_DEBERTA),
        ("gliner_bi", save_gliner_bi, OF_BERT),
    ],
)
def test_entities(tmp_path, minilm_directory, family, save, configs):
    library = save(tmp_path, minilm_directory)
    check(
        *(Extractor(family, tmp_path / "model"), configs, tmp_path),
        partial(attribute, library.model.token_rep_layer.bert_layer, "model"),
        lambda: library.inference(TEXTS, list(LABELS), threshold=0.3, flat_ner=True, multi_label=False),
        lambda found, theirs, i: assert_same(found, theirs),
        *(TEXTS, LABELS),
        threshold=0.3,
    )


def test_classes_of_the_models_own(tmp_path, minilm_directory):
    """The adapter includes a trained classifier."""
    directory = save_classifier(tmp_path / "model", minilm_directory, labels=classes.LABELS)
    library = transformers.pipeline("text-classification", model=str(directory), device="cpu", top_k=None)
    check(
        *(Extractor("sequence_classification", directory), OF_HEAD, tmp_path),
        partial(attribute, library, "model"),
        lambda: library(CLASSIFIED),
        lambda found, theirs, i: classes.assert_same(found, theirs),
        CLASSIFIED,
    )


def test_labels_of_tokens(tmp_path, minilm_directory):
    directory = token_labels.save(tmp_path, minilm_directory)
    library = token_labels.pipeline(directory, aggregation_strategy="simple")
    check(
        *(Extractor("token_classification", directory), (OF_BERT[0], OF_TOKENS), tmp_path),
        partial(attribute, library, "model"),
        lambda: library(token_labels.MANY[:1] * 2),
        lambda found, theirs, i: token_labels.assert_same(found["entities"], theirs),
        token_labels.MANY[:1] * 2,
    )


def test_adapters_apply_to_zero_shot_classification(tmp_path, minilm_directory):
    """The head reads the decoder's last state; its layer `out_proj` is adapted, too."""
    configs = ({"target_modules": ["q_proj", "fc1"]}, {"target_modules": ["out_proj"]})
    directory = save_classifier(tmp_path / "model", minilm_directory, "bart", labels=nli.THREE)
    library = transformers.pipeline("zero-shot-classification", model=str(directory), device="cpu")
    check(
        *(Extractor("nli_classification", directory), configs, tmp_path),
        partial(attribute, library, "model"),
        lambda: [list(nli.in_pipeline(library, text, nli.LABELS)) for text in CLASSIFIED],
        lambda found, theirs, i: nli.assert_same(found, theirs),
        *(CLASSIFIED, nli.LABELS),
    )


def test_spans_that_are_kept(tmp_path, minilm_directory):
    """Scores use the adapter's classifier; spans use the base's pruning head on the adapter's states."""
    directory = save_pruner(tmp_path / "model", minilm_directory)
    plain, passages = Pruner(directory), CLASSIFIED
    check(
        *(Extractor("stablebridge_pruner", directory), OF_HEAD, tmp_path),
        partial(attribute, plain, "_model"),
        lambda: [plain(pruner.QUERY, passage) for passage in passages],
        lambda found, theirs, i: pruner.assert_same(found, theirs, passages[i]),
        passages,
        instruction=pruner.QUERY,
    )
