"""Datasets on disk: what is read, and the sentence for each fault."""

import json

import pytest

from sie_triton.cli.evaluation import dataset
from sie_triton.cli.evaluation.dataset import read_dataset
from sie_triton.errors import InputError

CORPUS = [
    {"_id": "d1", "title": "Owls", "text": "They hunt at night."},
    {"_id": "d2", "text": "Eels swim.", "metadata": {}},
]
QUERIES = [{"_id": "q1", "text": "what hunts"}, {"_id": "q2", "text": "what swims"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n"


@pytest.fixture
def write(tmp_path):
    def write(corpus=CORPUS, queries=QUERIES, qrels=QRELS):
        (tmp_path / "qrels").mkdir(exist_ok=True)
        for name, rows in ("corpus", corpus), ("queries", queries):
            lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        (tmp_path / "qrels" / "test.tsv").write_text(qrels)
        return tmp_path

    return write


def test_titles_come_first_and_only_judged_queries_are_kept(write):
    read = read_dataset(write())
    assert read.corpus == {"d1": "Owls They hunt at night.", "d2": "Eels swim."}
    assert read.queries == {"q1": "what hunts"}
    assert read.relevant == {"q1": {"d1": 2}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"corpus": ["{"]}, r"corpus\.jsonl:1: is not JSON"),
        ({"corpus": [[]]}, r'corpus\.jsonl:1: must be an object with strings "_id" and "text"'),
        ({"corpus": [{"_id": 1, "text": "x"}]}, r"corpus\.jsonl:1: must be"),
        ({"corpus": [{"_id": "a", "text": "x", "title": 5}]}, r"corpus\.jsonl:1: must be"),
        ({"queries": [*QUERIES, QUERIES[0]]}, r"queries\.jsonl:3: _id 'q1' occurs twice"),
        ({"qrels": "q1\td1\n"}, r"test\.tsv:1: must be query-id, corpus-id and a whole number"),
        ({"qrels": "q1\td1\thigh\n"}, r"test\.tsv:1: must be"),
        ({"qrels": "q1\td9\t1\n"}, r"names 'd9', which corpus\.jsonl does not contain"),
        ({"qrels": "q9\td1\t1\n"}, r"names 'q9', which queries\.jsonl does not contain"),
        ({"qrels": "q1\td1\t0\n"}, r"no query has a relevant document"),
    ],
)
def test_a_fault_is_named_with_file_and_line(write, given, said):
    with pytest.raises(InputError, match=said):
        read_dataset(write(**given))


def test_a_directory_of_something_else(tmp_path):
    with pytest.raises(InputError, match=r"corpus\.jsonl: cannot be read .* a dataset is a directory with corpus"):
        read_dataset(tmp_path)


def test_text_that_is_not_utf_8(write):
    directory = write()
    (directory / "queries.jsonl").write_bytes(b'{"_id": "q1", "text": "\xff"}')
    with pytest.raises(InputError, match=r"queries\.jsonl:1: is not UTF-8"):
        read_dataset(directory)


@pytest.mark.parametrize(("limit", "value"), [("MAX_LINE_BYTES", 40), ("MAX_LINES", 1)])
def test_limits(write, monkeypatch, limit, value):
    monkeypatch.setattr(dataset, limit, value)
    with pytest.raises(InputError, match=r"corpus\.jsonl:[12]: at most \d+ lines of at most \d+ bytes are read"):
        read_dataset(write())
