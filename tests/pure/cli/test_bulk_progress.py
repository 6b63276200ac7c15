"""Progress bar of bulk commands."""

import io

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


@pytest.mark.parametrize(("num_bytes", "position"), [(20_000, 15_010), (None, 1501)])
def test_the_bar_counts_lines_and_their_bytes(monkeypatch, num_bytes, position):
    """Lines of a run before are counted, but are no speed of this one."""
    stream = io.StringIO()
    monkeypatch.setattr(progress_module, "Console", lambda **_: Console(file=stream, width=100, force_terminal=True))
    with progress(Sized(num_bytes), 1000, is_shown=True) as bar:
        bar.advance([Line(i, end=i * 10) for i in range(1001, 1502)])
        (task,) = bar._bar.tasks
        assert (task.completed, task.total) == (position, num_bytes)
        bar._bar.refresh()
        assert "1,501 lines" in stream.getvalue()
    assert bar.summary().startswith("501 lines in ")
    assert bar.summary().endswith(", after 1,000 of a run before")
