"""Output files that an interrupted run leaves and the next one continues."""

import json
import resource
from contextlib import closing

import numpy as np
import pytest

from sie_triton import InputError
from sie_triton.cli.bulk import part as part_module
from sie_triton.cli.bulk.lines import InputLine
from sie_triton.cli.bulk.part import JsonPart, NpyPart, RankedPart
from sie_triton.cli.bulk.records import error_record
from sie_triton.errors import SIEError

RUN = {"command": "encode", "model": "m", "input": {"size": 3, "modified_ns": 5}, "parameters": {"is_query": True}}


class DensePart(NpyPart):
    def __init__(self, path, run, *, overwrite):
        super().__init__(path, run, "dense", overwrite=overwrite)


KINDS = [JsonPart, RankedPart, DensePart]
OF_EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
LINES = [InputLine(i) for i in range(1, 9)]
RECORDS = [{"id": i, "dense": np.arange(i, i + 3, dtype=np.float32), "score": -float(i * 5 % 8)} for i in range(8)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


def opened(kind, path, run=RUN, *, overwrite=False):
    return closing(kind(path, run, overwrite=overwrite))


def write(part, start=0, end=8):
    for i in range(start, end, 2):
        part.write(LINES[i : min(i + 2, end)], RECORDS[i : min(i + 2, end)])


def whole(kind, path):
    with opened(kind, path) as part:
        write(part)
        part.finish()
    return path.read_bytes()


def files_of(path):
    return sorted(each.name for each in path.parent.iterdir())


@pytest.fixture(autouse=True)
def num_doubtful(monkeypatch):
    """Chunks of these tests have two records at most."""
    monkeypatch.setattr(part_module.PartFile, "num_doubtful", 2)


@OF_EVERY_KIND
def test_a_part_that_ends_at_any_byte_is_continued_to_the_same_file(kind, tmp_path):
    expected, path = whole(kind, tmp_path / "whole"), tmp_path / "out"
    with opened(kind, path) as part:
        write(part, 0, 5)
    content, done = (tmp_path / "out.part").read_bytes(), set()
    for size in range(len(content) + 1):
        (tmp_path / "out.part").write_bytes(content[:size])
        (tmp_path / "out.part.json").write_bytes(json.dumps(RUN).encode())
        with opened(kind, path) as part:
            done.add(part.num_skipped)
            write(part, part.num_skipped)
            part.finish()
        assert path.read_bytes() == expected
        path.unlink()
    assert done == {0, 1, 2, 3}
    assert files_of(path) == ["whole"]


@OF_EVERY_KIND
@pytest.mark.parametrize("num_written", [2, 6])
def test_a_last_chunk_that_did_not_reach_the_disk_is_made_again(kind, tmp_path, num_written):
    """After a power failure, a file may have its size, but not all of its content."""
    expected, path = whole(kind, tmp_path / "whole"), tmp_path / "out"
    part = tmp_path / "out.part"
    with opened(kind, path) as sink:
        write(sink, 0, num_written - 2)
        size = part.stat().st_size
        write(sink, num_written - 2, num_written)
    content = part.read_bytes()
    for num_lost in range(0, len(content) - size, 3):
        start = len(content) - num_lost
        part.write_bytes(content[:size] + bytes(start - size) + content[start:])
        (tmp_path / "out.part.json").write_bytes(json.dumps(RUN).encode())
        with opened(kind, path) as sink:
            assert sink.num_skipped <= num_written - 2
            write(sink, sink.num_skipped)
            sink.finish()
        assert path.read_bytes() == expected
        path.unlink()


@OF_EVERY_KIND
def test_a_file_exists_only_when_it_is_complete(kind, path):
    with opened(kind, path) as part:
        write(part)
        assert not path.exists()
        part.finish()
        assert files_of(path) == ["out"]
    with pytest.raises(InputError, match=r"--output: .*out exists; --overwrite starts anew"):
        kind(path, RUN, overwrite=False)
    assert files_of(path) == ["out"]


def test_an_npy_file_has_a_row_for_each_line(path):
    whole(DensePart, path)
    np.testing.assert_array_equal(np.load(path), np.array([record["dense"] for record in RECORDS]))


def test_an_npy_file_without_lines_can_be_loaded(path):
    with opened(DensePart, path) as part:
        part.finish()
    assert np.load(path).shape == (0, 0)


def test_ranks_are_over_all_lines_and_errors_have_none(path):
    with opened(RankedPart, path) as part:
        part.write(LINES, [*RECORDS[:5], error_record(LINES[5], "is blank"), *RECORDS[6:]])
        part.finish()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found[5] == {"line": 6, "error": "is blank"}
    scores = {record["score"]: record["rank"] for record in found if "score" in record}
    assert [scores[score] for score in sorted(scores, reverse=True)] == list(range(7))
    assert [record["id"] for record in found if "id" in record] == [0, 1, 2, 3, 4, 6, 7]


def test_equal_scores_are_ranked_in_the_order_of_the_lines(path):
    with opened(RankedPart, path) as part:
        part.write(LINES[:3], [{"score": 1.0}] * 3)
        part.finish()
    assert [json.loads(line)["rank"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_errors_of_the_runs_before_are_counted(path):
    with opened(JsonPart, path) as part:
        part.write(LINES[:2], [error_record(LINES[0], "is blank"), RECORDS[1]])
        part.write(LINES[2:4], [RECORDS[2], error_record(LINES[3], "is blank")])
        assert part.num_errors == 2
    with opened(JsonPart, path) as part:
        assert (part.num_skipped, part.num_errors) == (2, 1)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"model": "n"}, 'model was "m", now "n"'),
        ({"parameters": {}}, "parameters.is_query was true, now absent"),
        ({"input": {"size": 4, "modified_ns": 5}}, "input.size was 3, now 4; --overwrite"),
        ({"input": None}, 'input was {"size":3,"modified_ns":5}, now absent'),
        ({"format": "npy"}, 'format was absent, now "npy"'),
    ],
)
def test_a_part_of_another_run_is_refused_and_left_alone(path, change, difference):
    with opened(JsonPart, path) as part:
        write(part, 0, 2)
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    with pytest.raises(InputError) as caught:
        JsonPart(path, {**RUN, **change}, overwrite=False)
    assert f"out.part is of another run: {difference}" in str(caught.value)
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before
    with opened(JsonPart, path, {**RUN, **change}, overwrite=True) as part:
        assert part.num_skipped == 0


def test_a_part_of_unknown_origin_is_refused(path):
    (path.parent / "out.part").write_text("{}\n")
    with pytest.raises(InputError, match=r"out\.part is of another run, without .*out\.part\.json"):
        JsonPart(path, RUN, overwrite=False)


def test_a_part_from_a_pipe_is_refused(path):
    piped = {**RUN, "input": None}
    with opened(JsonPart, path, piped) as part:
        write(part, 0, 2)
    with pytest.raises(InputError, match="a pipe cannot be read again; give --input"):
        JsonPart(path, piped, overwrite=False)


@OF_EVERY_KIND
def test_overwriting_keeps_the_old_file_until_the_new_one_is_complete(kind, path):
    path.write_text("old")
    with opened(kind, path, overwrite=True) as part:
        write(part, 0, 4)
    assert path.read_text() == "old"
    with opened(kind, path) as part:
        assert part.num_skipped == 2
        write(part, 2)
        part.finish()
    assert path.read_bytes() == whole(kind, path.parent / "whole")


def test_two_runs_do_not_write_one_file(path):
    with opened(JsonPart, path) as part:
        write(part, 0, 2)
        for overwrite in (False, True):
            with pytest.raises(InputError, match=r"another run writes .*out\.part"):
                JsonPart(path, RUN, overwrite=overwrite)
        write(part, 2)
        part.finish()
    assert len(path.read_text().splitlines()) == 8


@OF_EVERY_KIND
def test_a_run_without_any_record_leaves_no_file(kind, path):
    opened(kind, path).__enter__().close()
    assert files_of(path) == []


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (
            {"dense": np.zeros(4, np.float32)},
            r"line 3: dense is float32 \[4\], but the rows before it are float32 \[3\]",
        ),
        ({"dense": np.zeros(3, np.int8)}, "line 3: dense is int8"),
        ({"pages": [{"dense": np.zeros(3)}]}, "line 3: has no dense of its own for a row; give --format jsonl"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(path, record, problem):
    with opened(DensePart, path) as part:
        write(part, 0, 2)
    with opened(DensePart, path) as part, pytest.raises(InputError, match=problem):
        part.write(LINES[2:3], [record])


def test_a_directory_that_does_not_exist_is_one_line(path):
    with pytest.raises(SIEError, match=r"missing/out\.part: cannot be written \(No such file"):
        JsonPart(path.parent / "missing" / "out", RUN, overwrite=False)


@OF_EVERY_KIND
def test_a_full_disk_is_one_line_and_the_run_is_continued(kind, path):
    expected = whole(kind, path.parent / "whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    part = kind(path, RUN, overwrite=False)
    write(part, 0, 4)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_suffix(".part").stat().st_size + 5, before[1]))
    try:
        with pytest.raises(SIEError, match=r"out\.part: cannot be written \(File too large\)"):
            write(part, 4)
        part.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with opened(kind, path) as part:
        assert part.num_skipped >= 2
        write(part, part.num_skipped)
        part.finish()
    assert path.read_bytes() == expected
