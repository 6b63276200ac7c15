"""Lines of progress that carry numbers, for a bar."""

from collections.abc import Callable

# Takes a line of progress periodically, and may raise to stop the work.
ReportProgress = Callable[[str], None]


class ProgressLine(str):
    """A line of progress, with its numbers of bytes; `total` is 0 until it is known."""

    done: int
    total: int

    def __new__(cls, text: str, done: int, total: int) -> "ProgressLine":
        line = super().__new__(cls, text)
        line.done, line.total = done, total
        return line
