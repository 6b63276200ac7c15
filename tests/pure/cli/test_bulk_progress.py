"""Progress bar of bulk commands."""

import io
import re

import pytest
from rich.console import Console

from sie_triton.cli.bulk import progress as progress_module
from sie_triton.cli.bulk.lines import Line, Source
from sie_triton.cli.bulk.progress import progress


class Sized(Source):
    name, identity = "texts.txt", None

    def __init__(self, num_bytes):
        self.num_bytes = num_bytes

    def lines(self, num_skipped=0):
        return iter(())


@pytest.fixture
def screen(monkeypatch):
    stream = io.StringIO()
    terminal = Console(file=stream, width=100, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress_module, "Console", lambda **_: terminal)
    return stream


def lines(start, end):
    return [Line(i, end=i * 10) for i in range(start, end)]


def shown(screen):
    """Return what the last update drew, without control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").split("\n")[-1]


@pytest.mark.parametrize("num_bytes", [20_000, None])
def test_the_bar_counts_lines_and_their_bytes(screen, num_bytes):
    with progress(Sized(num_bytes), 0, is_shown=True) as bar:
        bar.advance(lines(1, 501))
        bar.advance(lines(501, 1001))
        (task,) = bar._bar.tasks
        assert (task.completed, task.total) == ((10_000, 20_000) if num_bytes else (1000, None))
        bar._bar.refresh()
        assert re.search(r"texts\.txt .* 1,000 lines [\d,]+ lines/s", shown(screen)), shown(screen)
    assert re.fullmatch(r"1,000 lines in [\d.]+ s \([\d,]+ lines/s\)", bar.summary())


def test_lines_of_a_run_before_are_no_speed(screen):
    with progress(Sized(20_000), 1000, is_shown=True) as bar:
        bar.advance(lines(1001, 1002))
        (task,) = bar._bar.tasks
        assert (task.completed, task.speed) == (10_010, None)
        bar.advance(lines(1002, 1502))
        assert sum(sample.completed for sample in task._progress) == 5000
    assert bar.summary().startswith("501 lines in ")
    assert bar.summary().endswith(", after 1,000 of a run before")
