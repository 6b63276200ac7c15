"""Metrics of door processes, which share a directory: gauges of those that have ended do not stay."""

import os

from sie_triton.doors.counts import DIRECTORY, exposition, forget_dead


def test_gauges_of_processes_that_have_ended_are_removed(tmp_path):
    own, other = f"gauge_livemax_{os.getpid()}.db", "gauge_livesum_999999999.db"
    for name in (own, other, "counter_999999999.db"):
        (tmp_path / name).touch()
    forget_dead(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {own, "counter_999999999.db"}


def test_who_asks_for_metrics_gets_none_of_a_process_that_has_ended(tmp_path, monkeypatch):
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    (tmp_path / "gauge_livemax_999999999.db").touch()
    exposition()
    assert list(tmp_path.iterdir()) == []
