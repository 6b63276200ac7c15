"""Cohere's and Jina's bodies → requests; scores → their responses."""

import pytest

from sie_triton.doors.rerank import MAX_RANK_FIELDS, Rerank, answer
from sie_triton.errors import InputError

BODY = {"model": "org/name", "query": "q", "documents": ["a", "b", "c"]}


def asked(body):
    return Rerank.read(body, max_items=100)


def test_a_request_is_read_with_its_options():
    plain = asked(BODY)
    assert (plain.model, plain.query, plain.texts(), plain.top_n) == ("org/name", "q", ["a", "b", "c"], None)
    full = asked(
        {**BODY, "model": "org/name:wide", "top_n": 2, "priority": 1, "instruction": "judge", "max_chunks_per_doc": 1}
    )
    assert (full.model, full.top_n, full.options()) == ("org/name:wide", 2, {"instruction": "judge"})
    assert asked({**BODY, "relevant_spans": {"mode": "disabled"}, "max_tokens_per_doc": None}).options() == {}
    assert asked({**BODY, "top_n": 2.0, "max_chunks_per_doc": 1.0}).top_n == 2
    assert asked({**BODY, "truncate_prompt_tokens": -1, "overflow_policy": "truncate_text"}).options() == {}


def test_documents_may_be_objects_read_by_their_fields():
    documents = ["a", {"text": "b", "title": "B"}]
    assert asked({**BODY, "documents": documents}).texts() == ["a", "b"]
    assert asked({**BODY, "documents": documents, "rank_fields": ["title", "text"]}).texts() == ["a", "B\nb"]


def test_results_are_sorted_by_score_with_original_indices():
    found = answer("2", asked({**BODY, "top_n": 2}), [0.25, 0.75, 0.5], 30)
    assert found["results"] == [{"index": 1, "relevance_score": 0.75}, {"index": 2, "relevance_score": 0.5}]
    assert found["meta"] == {
        "api_version": {"version": "2"},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": 30},
    }
    assert found["usage"] == {"prompt_tokens": 30, "total_tokens": 30}
    assert answer("1", asked(BODY), [0.0, 0.0, 0.0], 1)["results"][0]["index"] == 0
    assert len(answer("1", asked({**BODY, "top_n": 0}), [0.0, 0.0, 0.0], 1)["results"]) == 3


def test_a_search_unit_is_a_hundred_documents():
    units = [answer("1", asked(BODY), [0.0] * n, 1)["meta"]["billed_units"]["search_units"] for n in (1, 100, 101)]
    assert units == [1, 1, 2]


class Counting(dict):
    """A document that counts how often a field of it is looked up."""

    lookups = 0

    def __getitem__(self, name):
        Counting.lookups += 1
        return super().__getitem__(name)

    def get(self, name, default=None):
        Counting.lookups += 1
        return super().get(name, default)


def test_documents_beyond_the_limit_are_not_read(monkeypatch):
    monkeypatch.setattr(Counting, "lookups", 0)
    with pytest.raises(InputError, match=r"^documents: has 200 entries"):
        asked({**BODY, "documents": [Counting(text="x") for _ in range(200)]}).texts()
    assert Counting.lookups == 0


def test_each_field_of_a_document_is_read_once(monkeypatch):
    monkeypatch.setattr(Counting, "lookups", 0)
    names = [str(i) for i in range(MAX_RANK_FIELDS)]
    documents = [Counting.fromkeys(names, "x") for _ in range(100)]
    found = asked({**BODY, "documents": documents, "rank_fields": names})
    assert found.texts() == ["\n".join("x" * len(names))] * 100
    assert Counting.lookups <= 2 * len(names) * len(documents)
