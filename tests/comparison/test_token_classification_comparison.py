"""Entities equal those of transformers' token-classification pipeline on the same weights."""

import json

import pytest
import torch
import transformers

from benchmarks.texts import texts
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.token_classification.aggregation import STRATEGIES
from tests.support import span_labels
from tests.support.classifiers import TEXTS, save_classifier
from tests.support.extraction import Extractor
from tests.support.tokenizers import KINDS

LABELS = ("O", "B-PER", "I-PER", "B-größe", "I-größe", "MISC", "L-X-Y")

# Each with a tokenizer of its kind: only those of BERT's mark the tokens that continue a word.
MODELS = (
    ("bert", "bert"),
    ("modernbert", "bert"),
    ("deberta", "bert"),
    ("roberta", "roberta"),
    ("xlm-roberta", "xlm-roberta"),
    ("qwen3", "qwen2"),
    ("privacy-filter", "qwen2"),
)
MANY = [*TEXTS, "Ann-Marie's dog  (a Labrador…) ran to São Paulo\n\tfast!", *texts(2, seed=3)]


def save(root, minilm, architecture="bert", tokenizer="bert", labels=LABELS):
    KINDS[tokenizer](root, minilm)
    kind = transformers.AutoModelForTokenClassification
    made = save_classifier(root / "model", minilm, architecture, labels=labels, kind=kind)
    for file in root.glob("*.*"):
        if file.name != "config.json":
            file.rename(made / file.name)
    return made


def pipeline(directory, **options):
    return transformers.pipeline("token-classification", model=str(directory), device="cpu", **options)


def assert_same(found, theirs):
    name = "entity_group" if theirs and "entity_group" in theirs[0] else "entity"
    assert [(each["label"], each["start"], each["end"]) for each in found] == [
        (each[name], each["start"], each["end"]) for each in theirs
    ]
    assert [each["score"] for each in found] == pytest.approx([float(each["score"]) for each in theirs], abs=1e-4)


@pytest.mark.parametrize(("architecture", "tokenizer"), MODELS)
def test_entities_are_those_of_the_library(tmp_path, minilm_directory, architecture, tokenizer):
    directory = save(tmp_path, minilm_directory, architecture, tokenizer)
    assert family_in(directory)[0] == "token_classification"
    ours, library = Extractor("token_classification", directory), pipeline(directory)
    assert ours.adapter.encoder.path == ("padded" if architecture == "privacy-filter" else "packed")
    read = [text for text in MANY if text or tokenizer != "qwen2"]  # which makes no token of an empty text
    requests = [(read, (), {"aggregation_strategy": strategy}) for strategy in STRATEGIES]
    labels = set()
    for strategy, found in zip(STRATEGIES, ours.extract(requests), strict=True):
        for text, each in zip(read, found, strict=True):
            assert_same(each["entities"], library(text, aggregation_strategy=strategy) if text else [])
            labels |= {entity["label"] for entity in each["entities"]}
            assert all(entity["text"] == text[entity["start"] : entity["end"]] for entity in each["entities"])
    assert len(labels) > 3


def test_a_long_text_is_read_in_windows(tmp_path, minilm_directory):
    """The library reads the whole text if it is told how much two windows share."""
    directory, long = save(tmp_path, minilm_directory), " ".join(texts(24, seed=4))
    library = pipeline(directory, stride=64, aggregation_strategy="simple")
    found = Extractor("token_classification", directory)([long], threshold=0.5)[0]["entities"]
    assert_same(found, [each for each in library(long) if each["score"] >= 0.5])
    assert found[-1]["end"] > len(long) * 3 // 4


def calibrated(directory, text):
    """Entities of the best path over transformers' own scores."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    read = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    places = read.pop("offset_mapping")[0].tolist()
    model = transformers.AutoModelForTokenClassification.from_pretrained(directory)
    with torch.inference_mode():
        scores = model(**read).logits[0].log_softmax(-1)
    path = span_labels.searched(scores)
    found = []
    for first, last, kind in span_labels.spans(path):
        start, end = places[first][0], places[last][1]
        words = text[start:end]
        if words.strip():
            of_labels = [scores[i, span_labels.LABELS.index(path[i])].exp() for i in range(first, last + 1)]
            start, end = end - len(words.lstrip()), start + len(words.rstrip())
            found.append({"entity": kind, "start": start, "end": end, "score": sum(of_labels) / len(of_labels)})
    return found


def test_a_calibration_decodes_the_likeliest_entities(tmp_path, minilm_directory):
    """A strategy that the request names counts instead."""
    directory = save(tmp_path, minilm_directory, "privacy-filter", "qwen2", span_labels.LABELS)
    (directory / "viterbi_calibration.json").write_text(json.dumps(span_labels.calibration()))
    ours, library = Extractor("token_classification", directory), pipeline(directory)
    read = [text for text in MANY if text] + [" \n two   lines \n\n of  white space  "]
    plain, named = ours.extract([(read, (), {}), (read, (), {"aggregation_strategy": "simple"})])
    for text, each, simple in zip(read, plain, named, strict=True):
        expected = calibrated(directory, text)
        assert_same(each["entities"], expected)
        assert_same(ours([text])[0]["entities"], expected)
        assert_same(simple["entities"], library(text, aggregation_strategy="simple"))
    assert sum(len(each["entities"]) for each in plain) > 30
