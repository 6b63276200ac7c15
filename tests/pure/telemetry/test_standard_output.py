"""A slow reader of standard output holds nothing up."""

import os

from sie_triton.processes.standard_output import Output
from tests.support.controller import wait_for


def test_lines_arrive_whole_and_in_order():
    reader, writer = os.pipe()
    output = Output(writer)
    for number in range(100):
        output.write(f"line {number}")
    output.close()
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read().splitlines() == [f"line {number}" for number in range(100)]


def test_what_a_reader_does_not_read_is_dropped_and_counted():
    reader, writer = os.pipe()
    output = Output(writer, max_waiting=10)
    line = "x" * 100_000  # more than a pipe holds
    for _ in range(20):
        output.write(line)
    wait_for(lambda: output.num_lost >= 9)
    os.close(reader)  # ends the thread, which waits for the reader
    wait_for(lambda: not output._thread.is_alive())
    os.close(writer)
