"""The totals of a model survive its processes, and stay with it."""

import pytest

from sie_triton.controller.traffic import TrafficBook
from sie_triton.errors import InputError
from sie_triton.records.status import StatusWriter, status_path
from sie_triton.records.traffic import ITEMS, LATENCY, MS


class Book(TrafficBook):
    """A book whose clock is moved on before each look."""

    now = 100.0

    def see(self, *models, after=1.0):
        self.now += after
        self.look(models or ("org__m",), self.now)


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path)


def process(directory, pid, steps="org__m", stage="postprocess"):
    """Return the writer of a process's traffic, and its record's path."""
    status = StatusWriter(directory, steps, stage, 0)
    return status.traffic, status._path.rename(status_path(directory, steps, stage, pid))


def requests_of(book, model="org__m"):
    return book.summary(model)["requests"]


def test_processes_of_a_model_are_summed_and_those_that_have_ended_still_count(tmp_path, book):
    (first, path), (second, _) = process(tmp_path, 1), process(tmp_path, 2)
    failing, _ = process(tmp_path, 3, stage="preprocess")
    first.observe({LATENCY: MS}, "encode")
    book.see()
    assert requests_of(book) == 1
    first.observe({LATENCY: MS}, "encode")  # after the last look at it
    path.unlink()
    second.observe({LATENCY: MS}, "score")
    second.observe({ITEMS: 4}, "score")
    failing.fail(InputError("a"))
    assert requests_of(book) == 3
    book.see()
    third, _ = process(tmp_path, 4)
    third.observe({LATENCY: MS}, "encode")
    book.see()
    assert book.summary("org__m") | {"p50_ms": None, "p99_ms": None} == {
        "requests": 4,
        "errors": 1,
        "items": 4,
        "loads": 0,
        "p50_ms": None,
        "p99_ms": None,
    }


def test_counters_are_told_apart_by_stage_and_loads_are_those_of_weights(tmp_path, book):
    for stage, count in (("preprocess", 2), ("inference", 3)):
        status = StatusWriter(tmp_path, "org__m", stage, 0)
        status.add(num_refused=count)
        status.loaded()
        book.see()
        status.remove()
    book.see()
    found = [book.totals(stage)["org__m"].total["num_refused"] for stage in ("preprocess", "inference", "")]
    assert found == [2, 3, 5]
    assert book.summary("org__m")["loads"] == 1


def test_a_revision_counts_for_its_model_and_another_model_does_not(tmp_path, book):
    for pid, steps in enumerate(("org__m", "org__m@2", "org__m2", "org__mm")):
        writer, _ = process(tmp_path, pid, steps)
        writer.observe({LATENCY: MS}, "encode")
    book.see("org__m", "org__m2")
    assert [requests_of(book, name) for name in ("org__m", "org__m2", "org__mm")] == [2, 1, 0]
    assert book.totals().keys() == {"org__m", "org__m2"}


def test_a_removed_model_is_forgotten(tmp_path, book):
    writer, _ = process(tmp_path, 1)
    writer.observe({LATENCY: MS}, "encode")
    book.see()
    book.see("org__other")
    assert requests_of(book) == 0
    assert book.totals().keys() == {"org__other"}


def test_files_are_listed_once_a_second(tmp_path, book):
    book.see()
    writer, _ = process(tmp_path, 1)
    writer.observe({LATENCY: MS}, "encode")
    book.see(after=0.5)
    assert requests_of(book) == 0
    book.see(after=0.5)
    assert requests_of(book) == 1


def test_latencies_are_those_of_the_last_minute(tmp_path, book):
    writer, _ = process(tmp_path, 1)
    book.see()
    assert book.summary("org__m")["p50_ms"] is None
    for _ in range(100):
        writer.observe({LATENCY: 900 * MS}, "encode")
    assert 500 < book.summary("org__m")["p50_ms"] <= 1000
    for _ in range(120):
        book.see()
    assert book.summary("org__m")["p50_ms"] is None
    writer.observe({LATENCY: 2 * MS}, "encode")
    assert 1 < book.summary("org__m")["p99_ms"] <= 2.5
    assert requests_of(book) == 101


def test_a_broken_file_is_left_out(tmp_path, book):
    (tmp_path / "org__m-postprocess.1.status").write_bytes(b"x")
    book.see()
    assert requests_of(book) == 0
