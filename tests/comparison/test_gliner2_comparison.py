"""Comparison with gliner2: the same findings with the same weights."""

import json

import numpy as np
import pytest
from gliner2.inference.candidate_decoder import finalize_spans

from benchmarks.texts import texts
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import PIECE, WORD_SPANS
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import explain, family_in
from tests.support.extraction import Extractor
from tests.support.gliner2s import save_gliner2

TEXTS = [
    "Ada Lovelace was born in London in 1815.",
    "naïve 😀 日本語 — größe e-mail_adress; [x] ada.l@math.org @ada",
    "read www.ada.org/x",
    "one",
    *texts(6, seed=3),
]
LABELS = {"person": {"description": "a human"}, "place of birth": {}, "größe": {"threshold": 0.7}, "日": {}}
RELATIONS = ("born in", "works for")
CLASSES = {
    "mood of it": ["good", "so so", "bad"],
    "topics": {"labels": {"a": "the first", "b": "the second"}, "multi_label": True, "threshold": 0.55},
}
JOB = {"firm": {"type": "string"}, "since": {"type": ["number", "null"]}, "ok": {"type": "boolean"}}
SCHEMA = {
    "title": "person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "full name"},
        "born": {"type": "integer"},
        "mood": {"enum": ["good", "bad", "So so"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "kinds": {"type": "array", "items": {"enum": ["x", "good", "y"]}},
        "jobs": {"type": "array", "items": {"type": "object", "properties": JOB}},
        "home": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def asked(**changes):
    """Return every kind of task as request parameters."""
    return {
        "label_descriptions": json.dumps({"person": "a human"}),
        "label_thresholds": json.dumps({"größe": 0.7}),
        "relation_labels": ", ".join(RELATIONS),
        "classes": json.dumps(CLASSES),
        "output_schema": json.dumps(SCHEMA),
        **changes,
    }


def librarys(model):
    """Return the same tasks as a schema of the library."""
    schema = model.create_schema()
    person = schema.structure("person").field("name", dtype="str", description="full name").field("born", dtype="str")
    person = person.field("mood", dtype="str", choices=["good", "bad", "So so"]).field("tags")
    jobs = person.field("kinds", choices=["x", "good", "y"]).structure("jobs").field("firm", dtype="str")
    jobs = jobs.field("since", dtype="str").field("ok", dtype="str", choices=["true", "false"])
    schema = jobs.structure("home").field("city", dtype="str").entities(LABELS).relations(list(RELATIONS))
    topics = CLASSES["topics"]
    return schema.classification("mood of it", CLASSES["mood of it"]).classification(
        "topics", topics["labels"], multi_label=True, cls_threshold=topics["threshold"]
    )


class Theirs:
    """Results of the library for one text, in our format."""

    def __init__(self, text, found):
        self.text, self.found = text, found

    def words(self, span):
        """Return the text of a span, or None for the full stop that the library appends."""
        return None if span is None else self.text[span["start"] : span["end"]] or None

    @property
    def entities(self):
        told = [(label, span) for label, spans in (self.found["entities"] or {}).items() for span in spans]
        ends = [(label, span, min(span["end"], len(self.text))) for label, span in told]
        rows = [(span["start"], end, label, span["confidence"]) for label, span, end in ends if span["start"] < end]
        return sorted(rows, key=lambda row: row[0])

    @property
    def relations(self):
        pairs = [(name, each) for name in RELATIONS for each in self.found["relation_extraction"][name]]
        return [
            (
                *(self.words(each["head"]), self.words(each["tail"]), each["head"]["start"], each["tail"]["start"]),
                *(name, min(each["head"]["confidence"], each["tail"]["confidence"])),
            )
            for name, each in pairs
            if self.words(each["head"]) and self.words(each["tail"])
        ]

    @property
    def classes(self):
        best = self.found["mood of it"]
        return [(each["label"], each["confidence"]) for each in (best, *self.found["topics"])]

    @property
    def data(self):
        person = (self.found["person"] or [{}])[0]
        tags = [self.words(each) for each in person.get("tags", [])]
        homes = [{"city": self.words(each["city"])} for each in self.found["home"][:1]]
        return {
            "name": self.words(person.get("name")),
            "born": number(self.words(person.get("born"))),
            "mood": (person.get("mood") or {}).get("text"),
            "tags": [each for each in tags if each],
            "kinds": [each["text"] for each in person.get("kinds", [])],
            "jobs": [
                job for each in self.found["jobs"] if any((job := self.job(each))[key] is not None for key in JOB)
            ],
            "home": homes[0] if homes and homes[0]["city"] else None,
            "mood of it": self.found["mood of it"]["label"],
            "topics": [each["label"] for each in self.found["topics"]],
        }

    def job(self, found):
        choice = {"true": True, "false": False}[found["ok"]["text"]] if found["ok"] else None
        return {"firm": self.words(found["firm"]), "since": number(self.words(found["since"])), "ok": choice}


def number(words):
    return int(words) if words and words.isdigit() else words


def scored(rows):
    """Return the rows without their scores, and the scores."""
    return [row[:-1] for row in rows], pytest.approx([row[-1] for row in rows], abs=1e-4)


def assert_same(text, ours, found):
    theirs = Theirs(text, found)
    entities = [(each["start"], each["end"], each["label"], each["score"]) for each in ours["entities"]]
    assert scored(theirs.entities) == ([row[:-1] for row in entities], [row[-1] for row in entities])
    keys = ("head", "tail", "head_start", "tail_start", "relation", "score")
    relations = [tuple(each[key] for key in keys) for each in ours["relations"]]
    assert scored(theirs.relations) == ([row[:-1] for row in relations], [row[-1] for row in relations])
    classes = [(each["label"], each["score"]) for each in ours["classifications"]]
    assert scored(theirs.classes) == ([row[:-1] for row in classes], [row[-1] for row in classes])
    assert ours["data"] == theirs.data
    return len(entities), len(relations), len(ours["data"]["jobs"])


POLICIES = {"": 0.5, "flat": 0.4, "nested": 0.6, "longest": 0.55, "allow": 0.7}
MODELS = [
    ("bert", {"counting_layer": "count_lstm"}, POLICIES),
    ("deberta", {"counting_layer": "count_lstm_v2", "max_width": 8}, {"": 0.45}),
    ("modernbert", {"counting_layer": "count_lstm_moe", "scale": 2.5}, {"": 0.55}),
]


@pytest.mark.parametrize(("architecture", "config", "policies"), MODELS, ids=[each[0] for each in MODELS])
def test_findings_equal_the_librarys(tmp_path, minilm_directory, architecture, config, policies):
    library = save_gliner2(tmp_path, minilm_directory, architecture, **config)
    config, reason = explain(tmp_path / "model", "org/model", {"weights_path": str(tmp_path / "model")})
    assert (config.family, [*config.resolve(Runtime()).tasks]) == ("gliner2", ["extract"])
    assert reason.endswith(f"{library.config.counting_layer} over {library.encoder.config.model_type}")
    ours = Extractor("gliner2", tmp_path / "model")
    assert ours.adapter.encoder.path == "packed"
    counts = []
    for policy, threshold in policies.items():
        told = {"include_confidence": True, "include_spans": True, "overlap_policy": policy or None}
        expected = library.batch_extract(TEXTS, librarys(library), threshold=threshold, **told)
        options = asked(threshold=threshold, **({"overlap_policy": policy} if policy else {}))
        together = ours(TEXTS, [*LABELS], **options)
        counts += [assert_same(*each) for each in zip(TEXTS, together, expected, strict=True)]
        assert_same(TEXTS[0], ours(TEXTS[:1], [*LABELS], **options)[0], expected[0])
    assert all(sum(each) >= 9 for each in zip(*counts, strict=True)), counts


@pytest.fixture(scope="module")
def models(tmp_path_factory, minilm_directory):
    root = tmp_path_factory.mktemp("gliner2")
    library = save_gliner2(root, minilm_directory, "bert")
    return library, Extractor("gliner2", root / "model")


def test_requests_share_a_forward_pass(models):
    """A request in a shared pass gets the same answer as alone."""
    _, ours = models
    requests = [
        (TEXTS[:4], ["person"], {}),
        (TEXTS[2:5], [], {"output_schema": json.dumps(SCHEMA), "threshold": 0.3}),
        (TEXTS[:1], ["person", "日"], asked(label_thresholds="{}", overlap_policy="allow")),
        (TEXTS[4:6], [], {"classes": json.dumps(CLASSES)}),
        (TEXTS[:2], [], {"relation_labels": '{"knows": "is a friend of", "sees": {"threshold": 0.1}}'}),
    ]
    together = ours.extract(requests)
    for request, found in zip(requests, together, strict=True):
        texts, labels, options = request
        alone = [ours([text], labels, **options)[0] for text in texts]
        assert without_scores(alone) == without_scores(found)
        assert scores_of(found) == pytest.approx(scores_of(alone), abs=1e-4)
    assert [bool(found[0]["entities"]) for found in together] == [True, False, True, False, False]
    assert set(together[3][0]["data"]) == {"mood of it", "topics"}
    assert together[4][0]["relations"]


def without_scores(found):
    if isinstance(found, dict):
        return {key: without_scores(value) for key, value in found.items() if key != "score"}
    return [without_scores(each) for each in found] if isinstance(found, list) else found


def scores_of(found):
    return [
        each["score"] for item in found for key in ("entities", "relations", "classifications") for each in item[key]
    ]


def test_a_relations_description_is_read_as_the_library_writes_it(models):
    library, ours = models
    described = {"knows": "is a friend of", "sees": "looks at"}
    schema = library.create_schema().relations(described)
    expected = library.batch_extract(TEXTS[:2], schema, include_confidence=True, include_spans=True)
    found = ours(TEXTS[:2], relation_labels=json.dumps(described))
    for theirs, each in zip(expected, found, strict=True):
        pairs = [
            pair
            for name, told in described.items()
            for pair in theirs["relation_extraction"].get(f"{name}: {told}", [])
        ]
        told = [min(pair["head"]["confidence"], pair["tail"]["confidence"]) for pair in pairs]
        assert told
        assert [one["score"] for one in each["relations"]] == pytest.approx(told, abs=1e-4)


@pytest.fixture(scope="module")
def short(tmp_path_factory, minilm_directory):
    """The library and our extractor, with windows of 24 words."""
    root = tmp_path_factory.mktemp("short")
    library = save_gliner2(root, minilm_directory, "bert", max_len=24)
    return library, Extractor("gliner2", root / "model")


LONG = "Größe 😀 of London; " * 14 + "the end\t"


def windows(ours, text, labels, options):
    """Return the start and the text of each window."""
    features = ours.features([text], labels, **options)
    values, lengths = features[WORD_SPANS.name]
    assert features[PIECE.name].values.tolist() == list(range(len(lengths)))
    spans = np.split(values, np.cumsum(lengths)[:-1])
    starts = [int(each[0, 0]) for each in spans]
    ends = [*(int(each[-1, 1]) for each in spans[:-1]), len(text)]
    assert all(start < end for start, end in zip(starts[1:], ends[:-1], strict=True))  # consecutive windows overlap
    return [(start, text[start:end]) for start, end in zip(starts, ends, strict=True)]


def test_findings_in_overlapping_windows_are_reported_once(short):
    library, ours = short
    options = asked(threshold=0.4)
    parts = windows(ours, LONG, [*LABELS], options)
    assert len(parts) > 3
    told = {"include_confidence": True, "include_spans": True}
    found = [Theirs(text, library.extract(text, librarys(library), threshold=0.4, **told)) for _, text in parts]
    (mine,) = ours([LONG], [*LABELS], **options)
    assert all(each["text"] == LONG[each["start"] : each["end"]] for each in mine["entities"])
    expected = []
    for label in LABELS:
        rows = [
            (label, score, shift + start, shift + end)
            for (shift, _), theirs in zip(parts, found, strict=True)
            for start, end, name, score in theirs.entities
            if name == label
        ]
        expected += finalize_spans(rows)
    entities = [(each["start"], each["end"], each["label"], each["score"]) for each in mine["entities"]]
    expected = [(start, end, label, score) for label, score, start, end in expected]
    assert sorted(row[:3] for row in entities) == sorted(row[:3] for row in expected)
    assert sum(row[3] for row in entities) == pytest.approx(sum(row[3] for row in expected), abs=1e-3)
    best = max((theirs.found["mood of it"] for theirs in found), key=lambda each: each["confidence"])
    topics = {}
    for each in (each for theirs in found for each in theirs.found["topics"]):
        topics[each["label"]] = max(topics.get(each["label"], 0), each["confidence"])
    classes = {each["label"]: each["score"] for each in mine["classifications"]}
    assert classes == pytest.approx({best["label"]: best["confidence"], **topics}, abs=1e-4)
    relations = {
        (head, tail, start + shift, end + shift, name): 0
        for (shift, _), theirs in zip(parts, found, strict=True)
        for head, tail, start, end, name, _ in theirs.relations
    }
    keys = ("head", "tail", "head_start", "tail_start", "relation")
    assert sorted(tuple(each[key] for key in keys) for each in mine["relations"]) == sorted(relations)
    names = [
        (each["name"]["confidence"], theirs.words(each["name"]))
        for theirs in found
        for each in theirs.found["person"][:1]
        if each["name"]
    ]
    assert mine["data"]["name"] == max(names)[1]
    # Our results merge a job that two windows share; the library's results have no positions to merge by.
    jobs = [job for theirs in found for job in theirs.data["jobs"]]
    assert 0 < len(mine["data"]["jobs"]) <= len(jobs)
    assert all(job in jobs for job in mine["data"]["jobs"])


def test_the_appended_full_stop_appears_in_no_finding(short):
    """The appended full stop appears in no answer."""
    _, ours = short
    for text in ("word " * 60, "word", "word.", "", " ", "a" * 3000, "\x00", "😀" * 40):
        (found,) = ours([text], ["a", "b"], threshold=0, overlap_policy="allow", output_schema=json.dumps(SCHEMA))
        assert all(each["text"] and each["end"] <= len(text) for each in found["entities"])
        assert bool(found["entities"]) == bool(text.strip())
        assert set(found["data"]) == {*SCHEMA["properties"]}


def test_invalid_requests_are_refused_with_the_reason(models):
    _, ours = models
    for labels, options, said in (
        (
            [],
            {},
            "labels: is empty; send what to look for, as labels or in the parameters relation_labels, classes, ",
        ),
        ([], {"output_schema": "[]"}, "parameter output_schema: must be a JSON Schema"),
        (["a"], {"instruction": "find"}, "parameter instruction: this model does not read one"),
    ):
        with pytest.raises(InputError, match=f"^{said}"):
            ours(["text"], labels, **options)
    for labels, options in (
        ([f"word {i}" for i in range(200)], {}),
        ([], {"classes": json.dumps({"a": [str(i) for i in range(1000)]})}),
    ):
        with pytest.raises(InputError, match=r"^labels: labels and the other parameters have \d+ tokens; this model"):
            ours(["text"], labels, **options)


def test_markers_in_labels_and_classes_are_treated_as_text(models):
    """Every label is scored, even if it looks like a marker."""
    _, ours = models
    labels = ["[E]", "[P] a (", "[SEP_TEXT]", "[SEP_STRUCT] ) )", "\x00", "b"]
    (found,) = ours(["Ada Lovelace"], labels, threshold=0, overlap_policy="allow")
    assert {each["label"] for each in found["entities"]} == {*labels}
    names = {"[L]": ["[L]", "[P]"], "[P] [L] x": ["a", "b"]}
    (found,) = ours(["Ada Lovelace"], classes=json.dumps(names))
    assert [
        each["label"] in members for each, members in zip(found["classifications"], names.values(), strict=True)
    ] == [True, True]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"architecture": "boundary"},
            "config.json: architecture boundary cannot be served; .* adapter_path: gliner2_library",
        ),
        ({"token_pooling": "mean"}, "config.json: token_pooling mean cannot be served"),
        ({"counting_layer": "count_gru"}, "counting_layer 'count_gru' is unknown; supported are count_lstm, "),
        ({"span_head": {"max_width": 0}}, "config.json: span_head: max_width: must be a whole number from 1"),
        ({"span_head": {"span_mode": "x"}}, "config.json: span_head: span_mode x cannot be served"),
        (None, "config.json is missing in .*encoder_config"),
    ],
)
def test_a_directory_that_cannot_be_served_says_why(tmp_path, changed, said):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "extractor", **(changed or {})}))
    if changed:
        (tmp_path / "encoder_config").mkdir()
        (tmp_path / "encoder_config/config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(LoadError, match=said):
        family_in(tmp_path)
