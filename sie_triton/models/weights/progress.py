"""Lines of progress that carry numbers, for a bar."""


class ProgressLine(str):
    """A line of progress, with its numbers of bytes; `total` is 0 until it is known."""

    done: int
    total: int

    def __new__(cls, text: str, done: int, total: int) -> "ProgressLine":
        line = super().__new__(cls, text)
        line.done, line.total = done, total
        return line
