"""Spans and scores equal those of a plain computation with transformers on the same weights."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.texts import texts
from sie_triton.contract import Batch, Part
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import explain, family_in
from tests.support.classifiers import TEXTS
from tests.support.extraction import Extractor
from tests.support.pruners import SIZE, Pruner, save_pruner

QUERY = "how do vines climb, and why?"
PASSAGES = [*TEXTS, *texts(1, seed=3), "Two  spaces,   three;\n\na line. [SEP] and a token"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_pruner(tmp_path_factory.mktemp("pruner"), minilm_directory)


@pytest.fixture(scope="module")
def ours(directory):
    return Extractor("stablebridge_pruner", directory)


@pytest.fixture(scope="module")
def plain(directory):
    return Pruner(directory)


def spans(found):
    return [(each["start"], each["end"], each["label"]) for each in found["entities"]]


def assert_same(found, theirs, passage):
    score, expected = theirs
    assert spans(found) == [each[:3] for each in expected]
    assert [each["score"] for each in found["entities"]] == pytest.approx([each[3] for each in expected], abs=1e-4)
    assert [each["text"] for each in found["entities"]] == [passage[start:end] for start, end, *_ in expected]
    kept = [passage[start:end] for start, end, label, _ in expected if label != "pruned"]
    assert found["data"]["kept"] == kept
    assert found["data"]["score"] == pytest.approx(score, abs=1e-4)
    numbers = (found["data"]["num_kept"], found["data"]["num_spans"])
    assert numbers == (len(kept), len(expected))
    assert found["data"]["compression"] == pytest.approx(1 - len(kept) / max(1, len(expected)))


@pytest.mark.parametrize("architecture", ["xlm-roberta", "bert", "modernbert"])
def test_spans_are_those_of_a_plain_computation(tmp_path, minilm_directory, architecture):
    directory = save_pruner(tmp_path, minilm_directory, architecture)
    assert family_in(directory)[0] == "stablebridge_pruner"
    ours, plain, labels = Extractor("stablebridge_pruner", directory), Pruner(directory), set()
    assert ours.adapter.encoder.path == "packed"
    passages = PASSAGES[:-1]  # the plain computation would take the text's own separator for the end of the query
    for thresholds in ((0.6, 0.9), (0.4, 0.55)):
        options = dict(zip(("prune_threshold", "highlight_threshold"), thresholds, strict=True))
        for query in (QUERY, ""):
            together = ours(passages, instruction=query, **options)
            for passage, found in zip(passages, together, strict=True):
                theirs = plain(query, passage, *thresholds)
                assert_same(found, theirs, passage)
                labels |= {label for _, _, label in spans(found)}
            assert_same(ours([passage], instruction=query, **options)[0], theirs, passage)
    assert labels == {"pruned", "kept", "highlight"}


def test_a_special_token_in_a_passage_is_none_of_its_words(ours):
    passage = PASSAGES[-1]
    (found,) = ours([passage], instruction=QUERY)
    at = passage.index("[SEP]")
    assert not [each for each in found["entities"] if each["start"] <= at < each["end"] and each["text"] == "[SEP]"]
    assert {each["text"][-1] for each in found["entities"]} - {" ", "\n"}
    assert found["entities"][-1]["end"] == len(passage)


def test_requests_of_different_queries_share_a_forward_pass(ours, plain):
    requests = [
        (PASSAGES[:2], (), {"instruction": QUERY}),
        (PASSAGES[2:4], (), {"instruction": "x", "prune_threshold": 0.2}),
        (PASSAGES[:1], (), {}),
    ]
    for found, (some, _, options) in zip(ours.extract(requests), requests, strict=True):
        for each, passage in zip(found, some, strict=True):
            theirs = plain(options.get("instruction", ""), passage, options.get("prune_threshold", 0.6))
            assert_same(each, theirs, passage)


def test_scores_of_pairs_are_the_rerankers(ours, plain):
    """If query and passage together are too long, the longer is truncated first."""
    long = " ".join(texts(24, seed=4))
    for query, instruction in ((QUERY, None), ("vines", "say"), (" ".join(texts(12, seed=5)), None)):
        frame = ours.processor.frame(Part("text", [], query=query, instruction=instruction))
        passages = [*PASSAGES[:-1], long]
        features = ours.processor.encode([frame.around(passage) for passage in passages])
        assert len(features["input_ids"].lengths) == len(passages)
        rows = ours.adapter.forward(Batch(features, np.zeros(len(passages), np.bool_)))
        asked = query if instruction is None else f"{instruction} {query}"
        theirs = [plain(asked, passage)[0] for passage in passages]
        np.testing.assert_allclose(rows["scores"], theirs, atol=1e-4)
        assert not len(rows["keep_scores"])


def test_a_long_passage_is_judged_to_its_end(ours, plain):
    long = " ".join(texts(24, seed=4))
    (found,) = ours([long], instruction=QUERY)
    of_first = spans(
        {"entities": [dict(zip(("start", "end", "label"), each, strict=False)) for each in plain(QUERY, long)[1]]}
    )
    first_window = [each for each in spans(found) if each[1] < of_first[-1][1] * 0.6]
    assert len(first_window) > 3
    assert first_window == of_first[: len(first_window)]
    assert found["entities"][-1]["end"] == len(long)
    starts = [each["start"] for each in found["entities"]]
    assert starts == sorted(starts)


def test_labels_and_unknown_parameters_are_refused(ours):
    with pytest.raises(InputError, match="labels: this model has labels of its own; leave it out"):
        ours(["x"], ["a"])
    (nothing,) = ours([""], instruction=QUERY)
    assert nothing["entities"] == []
    assert nothing["data"]["num_spans"] == 0
    (asked,) = ours(["x"], instruction="word " * 5000)
    assert len(asked["entities"]) == 1


def test_the_head_is_where_the_model_file_says(directory, tmp_path, minilm_directory):
    config, reason = explain(directory, "org/pruner", {"weights_path": str(directory)})
    assert reason.startswith("best.safetensors beside BertForSequenceClassification") or "best.safetensors" in reason
    assert config.profile("default").adapter_options.loadtime.own == {"pruning_head_file": "best.safetensors"}
    bare = save_pruner(tmp_path / "bare", minilm_directory)
    (bare / "best.safetensors").rename(tmp_path / "trained.safetensors")
    with pytest.raises(LoadError, match=r"best\.safetensors is missing in .*/model; put the weights of the pruning"):
        Extractor("stablebridge_pruner", bare)
    (bare / "best.pt").write_bytes(b"")
    with pytest.raises(LoadError, match=r"best\.pt: weights only as pickles"):
        Extractor("stablebridge_pruner", bare)
    options = {"pruning_head_path": str(tmp_path), "pruning_head_file": "trained.pt"}
    elsewhere = Extractor(
        "stablebridge_pruner", bare, options={**options, "hidden_size": 64, "intermediate_size": SIZE}
    )
    assert elsewhere(["x"]) == Extractor("stablebridge_pruner", directory)(["x"])
    with pytest.raises(LoadError, match="intermediate_size is 24, but the model file says 512"):
        Extractor("stablebridge_pruner", bare, options={**options, "intermediate_size": 512})
    saved = load_file(tmp_path / "trained.safetensors")
    prefixed = {f"model.pruning_head.{name}": weight for name, weight in saved.items()}
    save_file({**prefixed, "classifier.weight": torch.zeros(1)}, tmp_path / "trained.safetensors")
    assert Extractor("stablebridge_pruner", bare, options=options)(["x"]) == elsewhere(["x"])
    save_file({"classifier.0.weight": saved["classifier.0.weight"]}, tmp_path / "trained.safetensors")
    with pytest.raises(LoadError, match=r"has no classifier\.0\.bias, classifier\.3\.bias, classifier\.3\.weight of a"):
        Extractor("stablebridge_pruner", bare, options=options)
    assert json.loads((directory / "config.json").read_text())["id2label"]
