"""Lines of files and of the command line as items."""

import io
import os

import pytest

from sie_triton.cli.bulk.lines import Arguments, Form, InputLine, Stream, chunks

JSON = Form("text")
PAIRS = Form("text", has_query=True)


def read(tmp_path, content, form=Form(), skip=0):  # noqa: B008, a constant
    path = tmp_path / "input"
    path.write_bytes(content)
    with path.open("rb") as file:
        return list(Stream(file, "input", form).lines(skip))


def test_lines_keep_their_text_number_and_position(tmp_path):
    found = read(tmp_path, "\ufeffé \r\n b\nc".encode())
    assert [(line.number, line.item, line.end) for line in found] == [
        (1, {"text": "é "}, 8),
        (2, {"text": " b"}, 11),
        (3, {"text": "c"}, 12),
    ]
    assert found[0].size == 3


def test_lines_that_are_skipped_are_counted(tmp_path):
    assert [(line.number, line.item["text"], line.end) for line in read(tmp_path, b"a\n\xff\nc\n", skip=2)] == [
        (3, "c", 6)
    ]


@pytest.mark.parametrize(
    ("form", "content", "problem"),
    [
        (Form(), b" \t", "is blank"),
        (Form(), b"", "is blank"),
        (Form(), b"ab\xff", "is not UTF-8 (invalid start byte at byte 2)"),
        (JSON, b"{", "is not JSON ("),
        (JSON, b'"text"', 'is not a JSON object; give {"text": "'),
        (JSON, b'{"body": "a"}', "has no field 'text' with a string; its fields are body"),
        (JSON, b'{"text": 7}', "has no field 'text' with a string"),
        (JSON, b'{"text": " "}', "has a blank field 'text'"),
        (JSON, b'{"text": "\\ud800"}', "is not JSON ("),
        (PAIRS, b"a", '; give {"query": "…", "text": "…"}, or a QUERY on the command line'),
        (PAIRS, b'{"text": "a"}', "has no field 'query' with a string; its fields are text"),
    ],
)
def test_a_line_that_cannot_be_sent_has_a_problem(tmp_path, form, content, problem):
    line, after = read(tmp_path, content + b'\n{"text": "good", "query": "q"}\n', form)
    assert (line.item, line.number, problem in line.problem) == ({}, 1, True), line.problem
    assert (after.number, after.problem) == (2, "")


def test_a_long_line_is_a_problem_and_the_next_line_is_read():
    content = io.BytesIO(b"x" * 10 + b"\n" + b"y" * 31 + b"\nz\n")
    fits, long, after = Stream(content, "input", Form(), max_line_bytes=10).lines()
    assert fits.item == {"text": "x" * 10}
    assert long.problem.startswith("is longer than ")
    assert (after.item, after.number, after.end) == ({"text": "z"}, 3, 45)


def test_ids_and_queries_of_json_lines(tmp_path):
    (line,) = read(tmp_path, b'{"id": 7, "text": "a", "query": "q", "other": [1]}', PAIRS)
    assert (line.item, line.query) == ({"text": "a", "id": 7}, "q")


def test_a_pipe_has_no_identity():
    reader, writer = os.pipe()
    os.close(writer)
    with open(reader, "rb") as pipe:
        stream = Stream(pipe, "standard input", Form())
        assert (stream.identity, stream.num_bytes) == (None, None)


def test_arguments_are_lines(tmp_path):
    image = tmp_path / "a.png"
    image.write_bytes(b"0" * 25600)
    found = list(Arguments(["é", "b"], [image]).lines(1))
    assert found == [InputLine(2, {"text": "b"}, 1, 2), InputLine(3, {"image": image}, 2148, 3)]
    assert Arguments(["a"]).identity == Arguments(["a"]).identity != Arguments(["b"]).identity


def test_a_chunk_has_one_query_and_fits_into_a_request():
    pairs = [InputLine(i, size=2, query=query) for i, query in enumerate(["a", "a", "b", "a"])]
    assert [[line.number for line in chunk] for chunk in chunks(pairs)] == [[0, 1], [2], [3]]
    texts = [InputLine(i, size=2) for i in range(5)]
    assert [len(chunk) for chunk in chunks(texts, query_bytes=3, max_bytes=10)] == [2, 2, 1]
    assert list(chunks([])) == []


def test_lines_are_read_one_chunk_at_a_time(tmp_path):
    """A file is not read further than the chunks that are taken of it."""
    path = tmp_path / "input"
    path.write_bytes(b"line\n" * 100_000)
    with path.open("rb", buffering=io.DEFAULT_BUFFER_SIZE) as file:
        taken = chunks(Stream(file, "input", Form()).lines())
        next(taken)
        assert file.tell() < 10_000
