"""Details of forward passes: written by a stage, read while they are written."""

import json
from dataclasses import replace

import pytest

from sie_triton.cli.top import Window
from sie_triton.system.telemetry.batches import BatchDetail, BatchLog, BatchTail

ONE = BatchDetail(1.0, "org/m", 4, 2, 100, 0.5, 1, 3.0, 20.0)


@pytest.fixture
def log(tmp_path):
    made = BatchLog(tmp_path, "org__m", is_on=True)
    yield made
    made.close()


def test_nothing_is_written_while_it_is_off(tmp_path):
    BatchLog(tmp_path, "org__m", is_on=False).close()
    assert list(tmp_path.iterdir()) == []


def test_a_line_has_the_details_of_a_pass(tmp_path, log):
    log.add(ONE)
    found = json.loads((tmp_path / "batches" / "org__m.jsonl").read_text())
    assert found["num_items"] == 4
    assert BatchDetail(**found) == ONE


def test_the_tail_reads_what_is_new_of_every_model(tmp_path, log):
    log.add(ONE)
    tail = BatchTail(tmp_path)
    assert list(tail.read()) == []
    log.add(replace(ONE, cost=7))
    other = BatchLog(tmp_path, "org__n", is_on=True)
    other.add(replace(ONE, model="org/n"))
    other.close()
    assert [(each.model, each.cost) for each in tail.read()] == [("org/m", 7), ("org/n", 100)]
    assert list(tail.read()) == []


def test_a_line_that_is_not_whole_comes_later(tmp_path, log):
    tail, path = BatchTail(tmp_path), tmp_path / "batches" / "org__m.jsonl"
    log.add(ONE)
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert list(tail.read()) == []
    with path.open("ab") as file:
        file.write(whole[20:])
    assert list(tail.read()) == [ONE]


def test_files_are_bounded_and_the_tail_follows_their_rotation(tmp_path):
    log, tail, num_read = BatchLog(tmp_path, "org__m", is_on=True, max_bytes=1000), BatchTail(tmp_path), 0
    for number in range(100):
        log.add(replace(ONE, cost=number))
        num_read += [each.cost for each in tail.read()] == [number]
    log.close()
    assert num_read == 100
    assert sum(path.stat().st_size for path in (tmp_path / "batches").iterdir()) <= 2 * 1000


def test_a_window_forgets_old_passes_and_holds_a_limited_number(tmp_path, log):
    window = Window(BatchTail(tmp_path), seconds=5)
    for at in (1.0, 4.0, 6.0):
        log.add(replace(ONE, at=at))
    assert [each.at for each in window.look(now=6.0)["org/m"]] == [1.0, 4.0, 6.0]
    assert [each.at for each in window.look(now=8.0)["org/m"]] == [4.0, 6.0]
    assert not window.look(now=100.0)["org/m"]
    assert window.look(now=100.0)["org/m"].maxlen == 10_000
