"""A slow reader of standard output holds nothing up, and learns what it has missed."""

import os

from sie_triton.system.processes.log import Output
from tests.support.controller import wait_for

# More than a pipe holds.
LONG = "x" * 100_000


def test_lines_arrive_whole_and_in_order():
    reader, writer = os.pipe()
    output = Output(writer)
    for number in range(100):
        output.write(f"line {number}")
    output.flush()
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read().splitlines() == [f"line {number}" for number in range(100)]


def test_a_slow_reader_is_told_how_many_lines_it_lost():
    reader, writer = os.pipe()
    output = Output(writer, form=lambda line: f"form of {line}", max_waiting=10)
    for _ in range(20):
        output.write(LONG)
    wait_for(lambda: output._lines.full())
    output.write(LONG)
    num_lost = output.num_lost
    assert 9 <= num_lost <= 20
    with os.fdopen(reader) as file:
        lines = [file.readline().strip() for _ in range(22 - num_lost)]
    os.close(writer)
    assert lines.count(LONG) == 21 - num_lost
    assert f"form of [{num_lost} lines were left out: they were read too slowly]" in lines


def test_a_reader_that_has_ended_ends_nothing_else():
    reader, writer = os.pipe()
    output = Output(writer)
    os.close(reader)
    output.write("lost")
    wait_for(lambda: not output._thread.is_alive())
    output.write("lost too")
    os.close(writer)
