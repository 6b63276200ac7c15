"""Durations beside other work."""

from sie_triton.system.host import core_time
from sie_triton.system.host.core_time import seconds_on_core


def test_time_in_which_others_had_the_core_does_not_count(tmp_path, monkeypatch):
    """The work begins after 10 s, takes 3, of which it waits 2 for a core; the thread has waited 5 s before."""
    clock, stat = iter([10.0, 13.0]), tmp_path / "schedstat"
    stat.write_text("7000000000 5000000000 9\n")
    monkeypatch.setattr(core_time, "SCHEDSTAT", stat)
    monkeypatch.setattr(core_time, "perf_counter", lambda: next(clock))
    assert seconds_on_core(lambda: stat.write_text("8000000000 7000000000 12\n")) == 1.0


def test_the_clock_counts_alone_where_the_kernel_tells_nothing(tmp_path, monkeypatch):
    clock = iter([10.0, 13.0])
    monkeypatch.setattr(core_time, "SCHEDSTAT", tmp_path / "missing")
    monkeypatch.setattr(core_time, "perf_counter", lambda: next(clock))
    assert seconds_on_core(int) == 3.0
